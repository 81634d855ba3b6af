"""How far compiled loops are unrolled."""

UNROLL = {"gpu": 16}
"""Unroll factor of loops over stages, per platform: on a GPU every round costs a kernel launch, on a CPU nothing."""
