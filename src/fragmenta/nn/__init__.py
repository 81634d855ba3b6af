"""Networks shared by algorithms, and the encoder that turns observations into vectors."""

from fragmenta.nn.networks import MLP

__all__ = ["MLP"]
