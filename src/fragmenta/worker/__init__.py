"""Runs a fragment: fuses, compiles and executes its program."""
