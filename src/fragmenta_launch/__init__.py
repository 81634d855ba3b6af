"""The part of the engines that never loads JAX: starts processes, and cleans up what they leave behind."""
