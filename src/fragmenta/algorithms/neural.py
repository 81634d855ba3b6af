"""Shared by all algorithms with networks: encoding observations, precision, the optimizer."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import optax

from fragmenta.algorithms.base import Algorithm
from fragmenta.algorithms.limits import COUNT, FRACTION, NOT_NEGATIVE, POSITIVE, Limit
from fragmenta.envs import Environment
from fragmenta.errors import ConfigError
from fragmenta.nn import MLP
from fragmenta.nn.encoder import Encoder, check_observations, has_images


class Learner(NamedTuple):
    """Network parameters and optimizer state."""

    params: Any
    optimizer: Any


def linear_decay(rate: float, updates: int) -> optax.Schedule:
    """A rate that decays linearly to zero over `updates` updates, capped because Optax counts them in 32 bits."""
    return optax.linear_schedule(rate, 0.0, min(updates, 2**31 - 1))


def clipped_adam(rate: optax.ScalarOrSchedule, max_grad_norm: float) -> optax.GradientTransformation:
    """Adam after clipping by the global norm, on one flat vector, which is faster than on many small leaves."""
    return optax.flatten(optax.chain(optax.clip_by_global_norm(max_grad_norm), optax.adam(rate, eps=1e-5)))


@dataclasses.dataclass(frozen=True)
class NeuralAlgorithm(Algorithm):
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
    """Step size of the optimizer (Adam)."""
    anneal: bool = True
    """Decay the learning rate linearly to zero over the run."""
    gamma: float = 0.99
    """Discount of future rewards, per step."""
    max_grad_norm: float = 0.5
    """Gradients with a larger norm are scaled down to this one."""
    hidden: tuple[int, ...] = (64, 64)
    """Hidden layer widths of every network."""
    compute: str = "float32"
    """Precision of the networks' arithmetic: float32 or bfloat16. Parameters and optimizer stay float32."""

    @property
    def steps_per_iteration(self) -> int:
        return self.num_envs * self.horizon

    def validate(self, env: Environment) -> None:
        super().validate(env)
        if self.compute not in ("float32", "bfloat16"):
            raise ConfigError(f"compute is '{self.compute}': choose float32 or bfloat16")
        check_observations(env.observation_space)

    def init_encoder(self, env: Environment, key: jax.Array, observation: Any) -> tuple[dict[str, Any], jax.Array]:
        """The parameters of the observation encoder, and its features for an observation."""
        params: dict[str, Any] = {}
        if has_images(env.observation_space):
            params["encoder"] = self._encoder(env).init(jax.random.fold_in(key, 1), observation)
        return params, self.features(env, params, observation)

    def encode(self, env: Environment, params: Any, observation: Any) -> jax.Array:
        """The network inputs for a batch of observations."""
        return self.features(env, params, observation)

    def features(self, env: Environment, params: Any, observation: Any) -> Any:
        """Observations as vectors; plain vectors stay as they are."""
        return self._encoder(env).apply(params.get("encoder", {}), observation)

    def network(self, outputs: int, output_scale: float) -> nn.Module:
        """The architecture of every network: from encoded observations to `outputs` numbers, at first of about the size
        `output_scale`. Override it for another one."""
        return MLP(self.hidden, outputs, output_scale, self.compute)

    def acting(self, params: Any) -> Any:
        """The parameters in the precision used for acting."""
        # Cast once, not at every step; remote actors get the smaller copy.
        return jax.tree.map(lambda x: x.astype(self.compute), params)

    @property
    def updates_per_iteration(self) -> int:
        """Optimizer steps of one iteration."""
        return 1

    def optimizer(self) -> optax.GradientTransformation:
        """Adam after gradient clipping, at a rate that decays over the run if `anneal`."""
        updates = -(-self.total_steps // self.steps_per_iteration) * self.updates_per_iteration
        rate = linear_decay(self.learning_rate, updates) if self.anneal else self.learning_rate
        return clipped_adam(rate, self.max_grad_norm)

    def updated(self, learner: Learner, gradients: Any) -> Learner:
        """The learner after one step of the optimizer."""
        updates, optimizer = self.optimizer().update(gradients, learner.optimizer, learner.params)
        return Learner(optax.apply_updates(learner.params, updates), optimizer)

    def _encoder(self, env: Environment) -> Encoder:
        return Encoder(env.observation_space, self.compute)
