"""Checks that an environment is sound, and that a loop computes the same under every distribution policy."""
