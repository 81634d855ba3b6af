"""Shared by all algorithms with networks: encoding observations, precision, the optimizer, schedules."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from fragmenta.algorithms.base import Algorithm
from fragmenta.algorithms.limits import COUNT, FRACTION, NOT_NEGATIVE, POSITIVE, Limit
from fragmenta.algorithms.own_parts import check_network, encode_rows, own_network, own_optimizer
from fragmenta.algorithms.schedules import check_schedule, rules_of, scheduled
from fragmenta.envs import Dict, Environment, Space
from fragmenta.errors import ConfigError
from fragmenta.nn import MLP
from fragmenta.nn.encoder import Encoder, check_observations, has_images
from fragmenta.rl.masks import MASK, legal_actions, mask_part, without_parts
from fragmenta_core.spaces import assemble, leaves


class Learner(NamedTuple):
    """Network parameters and optimizer state."""

    params: Any
    optimizer: Any
    updates: Any = ()
    """How many there were, if a hyper-parameter follows a schedule; otherwise empty."""


class Encoded(NamedTuple):
    """A batch of observations as vectors."""

    actor: jax.Array
    """For the networks that choose actions."""
    critic: jax.Array
    """For those that value them; the same, unless some parts of the observations are for them alone."""
    legal: jax.Array | None = None
    """Which actions are legal, if observations say so."""


def linear_decay(rate: Any, updates: int) -> optax.Schedule:
    """A rate that decays linearly to zero over `updates` updates, capped because Optax counts them in 32 bits."""
    return optax.linear_schedule(rate, 0.0, min(updates, 2**31 - 1))


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
    """Step size of the optimizer."""
    anneal: bool = True
    """Decay the learning rate linearly to zero over the run."""
    gamma: float = 0.99
    """Discount of future rewards, per step."""
    max_grad_norm: float = 0.5
    """Gradients with a larger norm are scaled down to this one."""
    hidden: tuple[int, ...] = (64, 64)
    """Hidden layer widths of every network."""
    network: Any = ""
    """Your own network, as module:Class (a Flax module) or module:name (a pair of functions init, apply): from
    observations to features, in place of the encoder. The hidden layers follow."""
    optimizer: Any = "adam"
    """An optimizer of Optax by name, or your own as module:function: from a learning rate to a transformation."""
    schedule: tuple[str, ...] = ()
    """Hyper-parameters that change over the run: NAME=linear:FIRST:LAST, or cosine, exponential, module:function."""
    compute: str = "float32"
    """Precision of the networks' arithmetic: float32 or bfloat16. Parameters and optimizer stay float32."""

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

    @property
    def critic_parts(self) -> tuple[str, ...]:
        """The parts of the observations that only critics see."""
        return ()

    def validate(self, env: Environment) -> None:
        super().validate(env)
        if self.compute not in ("float32", "bfloat16"):
            raise ConfigError(f"compute is '{self.compute}': choose float32 or bfloat16")
        space = env.observation_space
        parts = [name for name, _ in space.spaces] if isinstance(space, Dict) else []
        for name in self.critic_parts:
            if name not in parts:
                there = f"whose parts are {', '.join(parts)}" if parts else "which have no parts"
                raise ConfigError(f"critic_only is '{name}', but it is not part of the observations, {there}")
        mask_part(space, env.action_space)
        own_optimizer(self.optimizer, self.learning_rate)
        check_schedule(self, self.schedule)
        if self.network:
            check_network(own_network(self.network), self.network, _rows_of(self._seen(space)))
        else:
            check_observations(space)

    def at(self, state: Any) -> Algorithm:
        return scheduled(self, self.schedule, self.share_done(state))

    def share_done(self, state: Any) -> jax.Array:
        """The share of the run before a state, 0 to 1."""
        if not self.schedule:
            return jnp.zeros(())
        updates = jnp.max(state.learner.updates)  # they are equal if agents have learners of their own
        return jnp.minimum(updates / (self.iterations * self.updates_per_iteration), 1.0)

    def init_encoder(self, env: Environment, key: jax.Array, observation: Any) -> tuple[dict[str, Any], Encoded]:
        """The parameters of the observation encoders, and the encoded observations."""
        params: dict[str, Any] = {}
        visible = without_parts(observation, self._unseen)
        if self.network or has_images(self._seen(env.observation_space)):
            params["encoder"] = self._encoder(env).init(jax.random.fold_in(key, 1), visible)
        if has_images(self._extra(env)):
            extra = {name: observation[name] for name in self.critic_parts}
            params["critic_encoder"] = self._critic_encoder(env).init(jax.random.fold_in(key, 3), extra)
        return params, self.features(env, params, observation)

    def encode(self, env: Environment, params: Any, observation: Any) -> Encoded:
        """The network inputs for a batch of observations."""
        return self.features(env, params, observation)

    def features(self, env: Environment, params: Any, observation: Any) -> Encoded:
        """Observations as vectors; plain vectors stay as they are."""
        visible = without_parts(observation, self._unseen)
        actor = self._encode(env, params.get("encoder", {}), visible)
        critic, legal = actor, legal_actions(env.observation_space, env.action_space, observation)
        if self.critic_parts:
            extra = {name: observation[name] for name in self.critic_parts}
            seen = self._critic_encoder(env).apply(params.get("critic_encoder", {}), extra)
            critic = jnp.concatenate([actor, seen], axis=-1)  # pyright: ignore[reportArgumentType]
        return Encoded(actor, critic, legal)

    def head(self, outputs: int, output_scale: float) -> nn.Module:
        """What follows the encoder in every network: from features to `outputs` numbers, at first of about the size
        `output_scale`. Override it for another architecture."""
        return MLP(self.hidden, outputs, output_scale, self.compute)

    def acting(self, params: Any) -> Any:
        """The parameters in the precision used for acting."""
        # Cast once, not at every step; remote actors get the smaller copy.
        return jax.tree.map(lambda x: x.astype(self.compute), params)

    def transformation(self) -> optax.GradientTransformation:
        """The optimizer after gradient clipping, at a rate that decays over the run if `anneal`."""
        rate: Any = self.learning_rate
        if self.anneal and "learning_rate" not in rules_of(self.schedule):
            rate = linear_decay(rate, self.iterations * self.updates_per_iteration)
        steps = optax.chain(optax.clip_by_global_norm(self.max_grad_norm), own_optimizer(self.optimizer, rate))
        # On one flat vector Adam is faster than on many small leaves; other optimizers may need to see their shapes.
        return optax.flatten(steps) if self.optimizer == "adam" else steps

    def new_learner(self, params: Any) -> Learner:
        """The learner before the first update."""
        return Learner(params, self.transformation().init(params), jnp.zeros((), jnp.int32) if self.schedule else ())

    def updated(self, learner: Learner, gradients: Any) -> Learner:
        """The learner after one step of the optimizer."""
        changes, optimizer = self.transformation().update(gradients, learner.optimizer, learner.params)
        updates = learner.updates + 1 if self.schedule else ()
        return Learner(optax.apply_updates(learner.params, changes), optimizer, updates)

    @property
    def _unseen(self) -> tuple[str, ...]:
        return (MASK, *self.critic_parts)

    def _seen(self, space: Space) -> Space:
        return without_parts(space, self._unseen)

    def _extra(self, env: Environment) -> Dict:
        space = env.observation_space
        parts = dict(space.spaces) if isinstance(space, Dict) else {}
        return Dict(tuple((name, parts[name]) for name in self.critic_parts))

    def _encode(self, env: Environment, params: Any, visible: Any) -> Any:
        if not self.network:
            return self._encoder(env).apply(params, visible)
        one = jax.tree.leaves(_rows_of(self._seen(env.observation_space)))[0]
        leading = jax.tree.leaves(visible)[0].ndim - (one.ndim - 1)
        return encode_rows(self._encoder(env), params, visible, leading)

    def _encoder(self, env: Environment) -> Any:
        return own_network(self.network) if self.network else Encoder(self._seen(env.observation_space), self.compute)

    def _critic_encoder(self, env: Environment) -> Encoder:
        return Encoder(self._extra(env), self.compute)


def _rows_of(space: Space) -> Any:
    """The shapes of two observations."""
    rows = (jax.ShapeDtypeStruct((2, *shape), dtype) for _, shape, dtype in leaves(space))
    return assemble(space, rows)
