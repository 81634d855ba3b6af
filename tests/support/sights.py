"""Tiny environments with image and dictionary observations and multi-discrete actions."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fragmenta import Box, Dict, Discrete, Environment, MultiDiscrete
from fragmenta_core.spaces import Space


@dataclasses.dataclass(frozen=True)
class BrightHalf(Environment):
    """One-step episodes: an image with one bright half; the matching action pays 1, the other -1."""

    max_steps: int = 10

    @property
    def observation_space(self) -> Space:
        return Box(0, 255, (6, 8, 1), "uint8")

    @property
    def action_space(self) -> Space:
        return Discrete(2)

    def initial(self, key: jax.Array) -> jax.Array:
        noise = jax.random.randint(key, (6, 8, 1), 0, 60)
        side = jax.random.bernoulli(jax.random.fold_in(key, 1)).astype(jnp.int32)
        bright = (jnp.arange(8) // 4 == side)[:, None]
        return (noise + 150 * bright).astype(jnp.uint8)

    def observe(self, state: jax.Array) -> jax.Array:
        return state

    def advance(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        side = jnp.mean(state[:, 4:].astype(jnp.float32)) > jnp.mean(state[:, :4].astype(jnp.float32))
        return state, jnp.where((action == 1) == side, 1.0, -1.0), jnp.ones((), bool)


@dataclasses.dataclass(frozen=True)
class Medley(Environment):
    """Nested dictionary observations of every kind and two integer actions; pays more the closer the actions are."""

    max_steps: int = 7
    continuous: bool = False

    @property
    def observation_space(self) -> Space:
        inner = Dict((("grid", Box(-1, 1, (2, 2))), ("place", Discrete(3))))
        picture = Box(0, 255, (2, 6, 6), "uint8")
        return Dict((("picture", picture), ("choices", MultiDiscrete((2, 3))), ("inner", inner)))

    @property
    def action_space(self) -> Space:
        return Box(-1, 1, (2, 1)) if self.continuous else MultiDiscrete((2, 3))

    def initial(self, key: jax.Array) -> Any:
        choices = jax.random.randint(key, (2,), 0, jnp.asarray([2, 3]))
        return {"choices": choices, "grid": jax.random.normal(key, (2, 2)) * 3 + 5, "place": choices[1]}

    def observe(self, state: Any) -> Any:
        picture = (state["choices"][:, None, None] * 80 + jnp.arange(36).reshape(6, 6)).astype(jnp.uint8)
        inner = {"grid": state["grid"], "place": state["place"]}
        return {"picture": picture, "choices": state["choices"], "inner": inner}

    def advance(self, state: Any, action: jax.Array, key: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        target = state["choices"].astype(jnp.float32)
        error = jnp.abs(action.reshape(2).astype(jnp.float32) - target)
        after = {**self.initial(key), "grid": state["grid"] * 0.9}
        return after, 1.0 - jnp.sum(error), jnp.sum(error) > 4
