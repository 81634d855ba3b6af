"""Hyper-parameter search: trials that differ only in numbers are trained as one compiled program."""
