"""Shared by all algorithms with networks: layers, precision, the optimizer, schedules."""

import dataclasses
import math
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from fragmenta.algorithms.base import Algorithm
from fragmenta.algorithms.flattening import flat_if_small
from fragmenta.algorithms.limits import COUNT, FRACTION, NOT_NEGATIVE, POSITIVE, Limit
from fragmenta.algorithms.own_parts import own_optimizer
from fragmenta.algorithms.part_checks import check_optimizer
from fragmenta.algorithms.remembering import Remembering
from fragmenta.algorithms.schedules import check_schedule, rules_of, scheduled
from fragmenta.envs import Environment
from fragmenta.errors import ConfigError
from fragmenta.nn import MLP


class Learner(NamedTuple):
    """Network parameters and optimizer state."""

    params: Any
    optimizer: Any
    updates: Any = ()
    """How many there were, if a hyper-parameter follows a schedule; otherwise empty."""


def linear_decay(rate: Any, updates: int) -> optax.Schedule:
    """A rate that decays linearly to zero over `updates` updates, capped because Optax counts them in 32 bits."""
    return optax.linear_schedule(rate, 0.0, min(updates, 2**31 - 1))


@dataclasses.dataclass(frozen=True)
class NeuralAlgorithm(Remembering):
    """Networks over encoded observations, trained by gradients."""

    limits: ClassVar[dict[str, Limit]] = {
        "horizon": COUNT,
        "learning_rate": NOT_NEGATIVE,
        "gamma": FRACTION,
        "max_grad_norm": POSITIVE,
        "hidden": COUNT,
    }

    horizon: int = 128
    """Steps per environment and iteration."""
    learning_rate: float = 1e-3
    """Step size of the optimizer."""
    anneal: bool = True
    """Decay the learning rate linearly to zero over the run."""
    gamma: float = 0.99
    """Discount of future rewards, per step."""
    max_grad_norm: float = 0.5
    """Gradients with a larger norm are scaled down to this one; inf leaves them as they are."""
    hidden: tuple[int, ...] = (64, 64)
    """Hidden layer widths of every network."""
    optimizer: Any = "adam"
    """An optimizer of Optax by name, or your own as module:function: from a learning rate to a transformation. From
    Python also a transformation itself, with which the learning rate is not used."""
    schedule: tuple[str, ...] = ()
    """Hyper-parameters that change over the run: NAME=linear:FIRST:LAST, or cosine, exponential, module:function."""

    @property
    def steps_per_iteration(self) -> int:
        return self.num_envs * self.horizon

    @property
    def updates_per_iteration(self) -> int:
        """Optimizer steps of one iteration."""
        return 1

    @property
    def iterations(self) -> int:
        """Iterations of a whole run."""
        return -(-self.total_steps // self.steps_per_iteration)

    def validate(self, env: Environment) -> None:
        super().validate(env)
        check_optimizer(self.optimizer, self.learning_rate)
        check_schedule(self, self.schedule)
        if "learning_rate" in rules_of(self.schedule) and isinstance(self.optimizer, optax.GradientTransformation):
            problem = "schedule changes learning_rate, but the optimizer is a transformation, which has its own"
            raise ConfigError(f"{problem}: pass a function from a learning rate to a transformation")

    def check_agents(self, env: Environment) -> None:
        """Raise ConfigError unless the algorithm trains as many agents as the environment has."""
        if env.team_size is not None:
            problem = f"{type(self).__name__} trains one agent, but {type(env).__name__} has {env.team_size}"
            raise ConfigError(f"{problem}: use mappo")

    def at(self, state: Any) -> Algorithm:
        return scheduled(self, self.schedule, self.share_done(state))

    def share_done(self, state: Any) -> jax.Array:
        """The share of the run before a state, 0 to 1."""
        if not self.schedule:
            return jnp.zeros(())
        updates = jnp.max(state.learner.updates)  # they are equal if agents have learners of their own
        return jnp.minimum(updates / float(self.iterations * self.updates_per_iteration), 1.0)

    def head(self, outputs: int, output_scale: float) -> nn.Module:
        """What follows the encoder in the policy and the value of an actor-critic: from features to `outputs` numbers,
        at first of about the size `output_scale`. Override it for another architecture; in all algorithms, `network` is
        what comes before."""
        return MLP(self.hidden, outputs, output_scale, self.compute_type)

    def acting(self, params: Any) -> Any:
        """The parameters in the precision used for acting."""
        # Cast once, not at every step; remote actors get the smaller copy.
        return jax.tree.map(lambda x: x.astype(self.compute_type), params)

    def transformation(self) -> optax.GradientTransformation:
        """The optimizer after gradient clipping, at a rate that decays over the run if `anneal`."""
        rate: Any = self.learning_rate
        if self.anneal and "learning_rate" not in rules_of(self.schedule):
            rate = linear_decay(rate, self.iterations * self.updates_per_iteration)
        steps = own_optimizer(self.optimizer, rate)
        if not (isinstance(self.max_grad_norm, float) and math.isinf(self.max_grad_norm)):
            steps = optax.chain(optax.clip_by_global_norm(self.max_grad_norm), steps)
        # Other optimizers may need to see the shapes of the parameters.
        return flat_if_small(steps) if self.optimizer == "adam" else steps

    def new_learner(self, params: Any) -> Learner:
        """The learner before the first update."""
        return Learner(params, self.transformation().init(params), jnp.zeros((), jnp.int32) if self.schedule else ())

    def updated(self, learner: Learner, gradients: Any) -> Learner:
        """The learner after one step of the optimizer."""
        changes, optimizer = self.transformation().update(gradients, learner.optimizer, learner.params)
        updates = learner.updates + 1 if self.schedule else ()
        return Learner(optax.apply_updates(learner.params, changes), optimizer, updates)
