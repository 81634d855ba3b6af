"""Backends that compile and run segments."""
