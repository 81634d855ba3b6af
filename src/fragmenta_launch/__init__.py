"""The side of the engines that never loads JAX: starting processes, and ending what they leave behind."""
