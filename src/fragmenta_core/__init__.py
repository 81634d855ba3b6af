"""What every process knows, with or without JAX: spaces, arrays in shared memory, errors of environments."""
