"""Shared by all processes, with or without JAX: spaces, arrays in shared memory, faults of environments."""
