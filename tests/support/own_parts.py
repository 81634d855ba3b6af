"""Parts that a user might bring: networks, optimizers, functions, and an environment that says what is legal."""

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from fragmenta.envs import Box, Dict, Discrete, Environment, MultiDiscrete, Transition
from fragmenta.envs.probes import ProbeMask, ProbeMaskState


class Gelu(nn.Module):
    """Flattens everything but the batch, as a network does that expects no other leading axes."""

    width: int = 16

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(x.shape[0], -1)
        return nn.gelu(nn.LayerNorm()(nn.Dense(self.width)(x)))


def _init(key: jax.Array, x: jax.Array) -> Any:
    return {"weights": jax.random.normal(key, (x.shape[-1], 8))}


def _apply(params: Any, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ params["weights"])


pair = (_init, _apply)


def _init_of_dictionary(key: jax.Array, x: dict[str, jax.Array]) -> Any:
    return _init(key, x["best"])


def _apply_to_dictionary(params: Any, x: dict[str, jax.Array]) -> jax.Array:
    return _apply(params, x["best"])


pair_of_dictionary = (_init_of_dictionary, _apply_to_dictionary)


class Flat(nn.Module):
    """Forgets the batch."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return x.reshape(-1)


class Leaky(nn.Module):
    """A memory that fades: the mean of what was seen, with a weight that is learned."""

    units: int

    @property
    def size(self) -> int:
        return self.units

    @nn.compact
    def __call__(self, memory: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        keep = nn.sigmoid(self.param("keep", nn.initializers.constant(2.0), (self.units,)))
        memory = keep * memory + (1.0 - keep) * nn.tanh(nn.Dense(self.units)(x))
        return memory, memory


class Normed(nn.Module):
    """Keeps statistics, which nothing updates."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.BatchNorm(use_running_average=False)(nn.Dense(4)(x))


class Dropping(nn.Module):
    """Draws random numbers."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dropout(0.5, deterministic=False)(nn.Dense(4)(x))


class Rounding(nn.Module):
    """Returns whole numbers, through which there are no gradients."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(4)(x).astype(jnp.int32)


class WithoutUnits:
    """A memory that cannot be made with its units."""


class DroppingCell(Leaky):
    """A memory that draws random numbers."""

    @nn.compact
    def __call__(self, memory: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        memory = nn.Dropout(0.5, deterministic=False)(memory) + nn.Dense(self.units)(x)
        return memory, memory


class NormedCell(Leaky):
    """A memory that keeps statistics."""

    @nn.compact
    def __call__(self, memory: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        memory = nn.BatchNorm(use_running_average=False)(memory + nn.Dense(self.units)(x))
        return memory, memory


def slow_adam(rate: Any) -> optax.GradientTransformation:
    return optax.chain(optax.scale_by_adam(b1=0.5), optax.scale_by_learning_rate(rate))


def halved(share: jax.Array) -> jax.Array:
    return 0.02 - 0.01 * share


def first_two(observation: jax.Array) -> jax.Array:
    return observation[:2]


def twice(observation: jax.Array) -> Any:
    return observation, observation


def nothing(observation: jax.Array) -> None:
    return None


def empty(observation: jax.Array) -> dict[str, jax.Array]:
    return {"none": observation[:0]}


def of_two(one: Any, two: Any) -> Any:
    return one


def too_high_in_the_middle(share: jax.Array) -> jax.Array:
    return 0.9 + share * (1.0 - share)


def in_a_list(share: jax.Array) -> jax.Array:
    return share[None]


def upside_down(step: Transition) -> jax.Array:
    return -step.reward


class ForbiddenState(NamedTuple):
    """Which actions are legal, and which of them pays."""

    legal: jax.Array
    best: jax.Array


@dataclasses.dataclass(frozen=True)
class Forbidden(Environment):
    """Of four actions two are legal at each step and pay 1, one of them a bonus, too; an illegal one ends the episode
    and pays nothing.

    The actor sees nothing but which actions are legal; the part `best` says which of them has the bonus. If it does not
    tell, all of them are said to be legal.
    """

    max_steps: int = 8
    bonus: float = 1.0
    tells: bool = True

    @property
    def observation_space(self) -> Dict:
        mask = Box(0.0, 1.0, (4,), "bool")
        return Dict((("action_mask", mask), ("best", Box(0.0, 1.0, (4,))), ("noise", Box(-1.0, 1.0, (2,)))))

    @property
    def action_space(self) -> Discrete:
        return Discrete(4)

    def initial(self, key: jax.Array) -> ForbiddenState:
        two = jax.random.permutation(key, 4)[:2]
        return ForbiddenState(jnp.zeros(4, bool).at[two].set(True), two[0])

    def observe(self, state: ForbiddenState) -> dict[str, jax.Array]:
        return {
            "action_mask": state.legal | (not self.tells),
            "best": jax.nn.one_hot(state.best, 4),
            "noise": jnp.zeros(2),
        }

    def advance(self, state: ForbiddenState, action: jax.Array, key: jax.Array) -> Any:
        reward = jnp.where(action == state.best, 1.0 + self.bonus, 1.0)
        return self.initial(key), jnp.where(state.legal[action], reward, 0.0), ~state.legal[action]


@dataclasses.dataclass(frozen=True)
class ForbiddenPairs(ProbeMask):
    """Two actions at a time, each as in ProbeMask, with a mask and a sign of its own; the reward is their mean."""

    @property
    def observation_space(self) -> Dict:
        return Dict((("action_mask", Box(0.0, 1.0, (2, 4), "bool")), ("observation", Box(-1.0, 1.0, (2,)))))

    @property
    def action_space(self) -> MultiDiscrete:  # pyright: ignore[reportIncompatibleMethodOverride]
        return MultiDiscrete((4, 4))

    def initial(self, key: jax.Array) -> ProbeMaskState:
        return jax.vmap(ProbeMask().initial)(jax.random.split(key))

    def observe(self, state: ProbeMaskState) -> dict[str, jax.Array]:
        return {"action_mask": state.legal, "observation": state.sign}

    def advance(self, state: ProbeMaskState, action: jax.Array, key: jax.Array) -> Any:
        state, reward, ended = jax.vmap(ProbeMask().advance)(state, action, jax.random.split(key))
        return state, jnp.mean(reward), jnp.any(ended)
