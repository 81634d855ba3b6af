"""Networks that algorithms share, and what turns observations into rows for them."""

from fragmenta.nn.networks import MLP, Recurrent

__all__ = ["MLP", "Recurrent"]
