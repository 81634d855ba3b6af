"""Host environments: their adapters, and the processes that step them.

This is a separate package because it runs in processes that must stay small and never load JAX: it imports only numpy
and the environment's package.
"""
