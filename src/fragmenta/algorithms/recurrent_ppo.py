"""PPO with a memory of the episode, for environments that observations do not show whole."""

import dataclasses
from typing import Any

from fragmenta.algorithms.ppo import PPO


@dataclasses.dataclass(frozen=True)
class RecurrentPPO(PPO):
    """PPO with gated recurrent units; learns on each environment's steps in order.

    A pass cuts every environment's steps into as many chunks as there are minibatches; a chunk starts from the memory
    that acting recorded there.
    """

    minibatches: int = 4
    """Minibatches per pass, and chunks per environment: more of them mean shorter sequences to learn from."""
    cell: Any = "gru"


@dataclasses.dataclass(frozen=True)
class LSTMPPO(RecurrentPPO):
    """PPO with long short-term memory."""

    cell: Any = "lstm"


@dataclasses.dataclass(frozen=True)
class TransformerPPO(RecurrentPPO):
    """PPO that attends to the latest steps of the episode."""

    cell: Any = "transformer"
