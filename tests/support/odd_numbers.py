"""Reinforce with numbers that cannot all be traced, reporting episodes as a sweep needs."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import jax
import jax.numpy as jnp

from fragmenta import Environment
from small_algorithm import Reinforce


@dataclasses.dataclass(frozen=True)
class Bonus(Reinforce):
    """Its bonus decides about Python's control flow, its scale about nothing but numbers."""

    bonus: float = 0.0
    scale: float = 1.0

    def iterate(self, env: Environment, state: Any) -> tuple[Any, dict[str, jax.Array]]:
        cleared = state._replace(world=state.world.clear_finished())
        following, metrics = super().iterate(env, cleared)
        loss = metrics["loss"] * self.scale
        if self.bonus > 0:
            loss = loss + self.bonus
        finished = jax.tree.map(jnp.sum, following.world.finished)
        return following, {**metrics, **finished._asdict(), "loss": loss}


@dataclasses.dataclass(frozen=True)
class Unlucky(Bonus):
    """Fails only in a process that was started for it."""

    def iterate(self, env: Environment, state: Any) -> tuple[Any, dict[str, jax.Array]]:
        main = sys.modules["__main__"].__spec__
        if main is not None and main.name == "fragmenta_launch.child":
            raise ZeroDivisionError("not here")
        return super().iterate(env, state)
