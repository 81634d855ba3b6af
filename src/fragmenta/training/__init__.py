"""Runs: what is trained, shown and kept."""
