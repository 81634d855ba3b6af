"""Environments that are not JAX: their adapters, and the processes that step them.

A package of its own, because it runs in processes that must stay small and must never load JAX: it imports numpy and
the environment's package, nothing else.
"""
