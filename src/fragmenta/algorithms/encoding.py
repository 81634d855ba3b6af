"""Shared by all algorithms with networks: from observations to what networks see."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fragmenta.algorithms.base import Algorithm
from fragmenta.algorithms.own_parts import apply_to_rows, checked_rewards, own_function, own_network
from fragmenta.algorithms.part_checks import check_network, checked_observation
from fragmenta.envs import Dict, Environment, Space, Transition, World
from fragmenta.envs.packages import space_of
from fragmenta.errors import ConfigError
from fragmenta.nn.encoder import Encoder, check_observations, has_images
from fragmenta.rl.masks import MASK, legal_actions, mask_part, without_parts
from fragmenta_core.spaces import assemble, leaves


class Encoded(NamedTuple):
    """A batch of observations as vectors."""

    actor: jax.Array
    """For the networks that choose actions."""
    critic: jax.Array
    """For those that value them; the same, unless some parts of the observations are for them alone."""
    legal: jax.Array | None = None
    """Which actions are legal, if observations say so."""


PRECISIONS = ("float32", "float32-exact", "bfloat16")
"""What `compute` may be."""


@dataclasses.dataclass(frozen=True)
class Encoding(Algorithm):
    """Encodes observations, by a network and a function of the user's own if they are given."""

    network: Any = ""
    """Your own network, as module:Class (a Flax module) or module:name (a pair of functions init, apply): from
    observations to features, in place of the encoder. The hidden layers follow."""
    observation_function: Any = ""
    """Your own function from one observation to what networks see instead, as module:function."""
    reward_function: Any = ""
    """Your own function from one Transition to the reward to learn from, as module:function; reported returns stay."""
    compute: str = "float32"
    """Precision of the networks' arithmetic: float32, bfloat16, or float32-exact, whose products keep all bits where
    hardware rounds those of float32 to TF32. Parameters and optimizer stay float32."""

    @property
    def compute_type(self) -> str:
        """The type of the networks' arithmetic."""
        return self.compute.removesuffix("-exact")

    @property
    def product_precision(self) -> str | None:
        return "highest" if self.compute == "float32-exact" else None

    @property
    def critic_parts(self) -> tuple[str, ...]:
        """The parts of the observations that only critics see."""
        return ()

    def validate(self, env: Environment) -> None:
        super().validate(env)
        if self.compute not in PRECISIONS:
            raise ConfigError(f"compute is '{self.compute}': choose {', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]}")
        space = env.observation_space
        parts = [name for name, _ in space.spaces] if isinstance(space, Dict) else []
        for name in self.critic_parts:
            if name not in parts:
                there = f"whose parts are {', '.join(parts)}" if parts else "which have no parts"
                raise ConfigError(f"critic_only is '{name}', but it is not part of the observations, {there}")
        mask_part(space, env.action_space)
        if self.reward_function:
            own_function("reward_function", self.reward_function)
        if self.network:
            check_network(own_network(self.network), self.network, _rows_of(self._visible_space(env), 2))
        else:
            check_observations(self._visible_space(env))

    def stepped(self, env: Environment, world: World, action: jax.Array) -> tuple[World, Transition]:
        """One step of every environment, with the rewards to learn from."""
        world, transition = env.step(world, action)
        if self.reward_function:
            reward = jax.vmap(own_function("reward_function", self.reward_function))(transition)
            transition = transition._replace(reward=checked_rewards(reward, transition.reward, self.reward_function))
        return world, transition

    def init_encoder(self, env: Environment, key: jax.Array, observation: Any) -> tuple[dict[str, Any], Encoded]:
        """The parameters of the observation encoders, and the encoded observations."""
        params: dict[str, Any] = {}
        if self.network or has_images(self._visible_space(env)):
            params["encoder"] = self._encoder(env).init(jax.random.fold_in(key, 1), self._visible(env, observation))
        if has_images(self._extra(env)):
            extra = {name: observation[name] for name in self.critic_parts}
            params["critic_encoder"] = self._critic_encoder(env).init(jax.random.fold_in(key, 3), extra)
        return params, self.features(env, params, observation)

    def encode(self, env: Environment, params: Any, observation: Any) -> Encoded:
        """The network inputs for a batch of observations."""
        return self.features(env, params, observation)

    def features(self, env: Environment, params: Any, observation: Any) -> Encoded:
        """Observations as vectors; plain vectors stay as they are."""
        visible, weights = self._visible(env, observation), params.get("encoder", {})
        if self.network:
            leading = _leading_axes(self._visible_space(env), visible)
            actor = apply_to_rows(lambda rows: self._encoder(env).apply(weights, rows), visible, leading - 1)
        else:
            actor = self._encoder(env).apply(weights, visible)
        critic, legal = actor, legal_actions(env.observation_space, env.action_space, observation)
        if self.critic_parts:
            extra = {name: observation[name] for name in self.critic_parts}
            for_critics: Any = self._critic_encoder(env).apply(params.get("critic_encoder", {}), extra)
            critic = jnp.concatenate([actor, for_critics], axis=-1)
        return Encoded(actor, critic, legal)

    def _visible(self, env: Environment, observation: Any) -> Any:
        """What networks see of observations."""
        visible = without_parts(observation, self._unseen)
        if not self.observation_function:
            return visible
        function = own_function("observation_function", self.observation_function)
        space = without_parts(env.observation_space, self._unseen)
        return apply_to_rows(function, visible, _leading_axes(space, visible))

    def _visible_space(self, env: Environment) -> Space:
        """The space of what networks see."""
        space = without_parts(env.observation_space, self._unseen)
        if not self.observation_function:
            return space
        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), _rows_of(space, 1))
        function = own_function("observation_function", self.observation_function)
        return space_of(checked_observation(jax.eval_shape(function, one), self.observation_function))

    @property
    def _unseen(self) -> tuple[str, ...]:
        return (MASK, *self.critic_parts)

    def _extra(self, env: Environment) -> Dict:
        space = env.observation_space
        parts = dict(space.spaces) if isinstance(space, Dict) else {}
        return Dict(tuple((name, parts[name]) for name in self.critic_parts))

    def _encoder(self, env: Environment) -> Any:
        return own_network(self.network) if self.network else Encoder(self._visible_space(env), self.compute_type)

    def _critic_encoder(self, env: Environment) -> Encoder:
        return Encoder(self._extra(env), self.compute_type)


def _rows_of(space: Space, count: int) -> Any:
    """The shapes of so many observations."""
    rows = (jax.ShapeDtypeStruct((count, *shape), dtype) for _, shape, dtype in leaves(space))
    return assemble(space, rows)


def _leading_axes(space: Space, observation: Any) -> int:
    """How many axes come before those of one observation."""
    return jax.tree.leaves(observation)[0].ndim - len(leaves(space)[0][1])
