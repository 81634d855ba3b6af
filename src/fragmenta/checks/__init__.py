"""Whether an environment is sound, and whether a loop computes the same under every policy."""
