"""Shared by algorithms for teams: one network for all agents or one for each, and which teams they take."""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fragmenta.envs import Box, Discrete, Environment, World
from fragmenta.errors import ConfigError
from fragmenta.rl.masks import MASK, without_parts
from fragmenta.rl.teams import TeamView, team_view


@dataclasses.dataclass(frozen=True)
class TeamNetworks:
    """The networks of the agents of a team."""

    shared: bool = True
    """Share networks among all agents; otherwise each has its own networks and optimizer, on the leaves' first axis."""

    def check_agents(self, env: Environment) -> None:
        """Raise ConfigError unless it is a team with vector observations and actions that the algorithm takes."""
        for name in ("network", "observation_function"):
            if getattr(self, name):
                problem = f"{name} is '{getattr(self, name)}', which {type(self).__name__} does not take for a team"
                raise ConfigError(f"{problem}: override its head(outputs, output_scale), or wrap the environment")
        if env.team_size is None or not self.takes_actions(env):
            problem = f"{type(env).__name__} is not a team with {self.action_kinds} actions"
            raise ConfigError(f"{problem}: choose a team such as jaxmarl:simple_spread, or another algorithm")
        space = vector_space(env)
        if not isinstance(space, Box) or len(space.shape) != 1:
            problem = f"an agent of {type(env).__name__} observes {space}, not a vector"
            raise ConfigError(f"{problem}: flatten it with a wrapper, for example supersuit:flatten_v0")

    @property
    def action_kinds(self) -> str:
        """The kinds of action spaces that the algorithm takes, in words."""
        return "discrete"

    def takes_actions(self, env: Environment) -> bool:
        """Whether the algorithm can act in the environment."""
        return isinstance(env.action_space, Discrete)

    def view(self, world: World) -> TeamView:
        """What the agents observe."""
        return team_view(world.observation, world.alive)

    def init_each(self, env: Environment, init: Callable[[jax.Array], Any], key: jax.Array) -> Any:
        """What `init` makes of a key: once for all agents, or once for each."""
        if self.shared:
            return init(key)
        # Not vmap: batched QR decompositions, as of orthogonal weights, can wait forever for each other on few cores.
        return jax.lax.map(init, jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(env.num_agents)))

    def apply_each(self, net: nn.Module, params: Any, inputs: jax.Array, axis: int = -2) -> Any:
        """Apply one network to all agents, or each agent's own; agents are the last axis but one of the inputs, and
        `axis` of the outputs."""
        return net.apply(params, inputs) if self.shared else jax.vmap(net.apply, (0, -2), axis)(params, inputs)

    def over_agents(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of one agent's parameters as one of those of all agents, unless they share them."""
        return function if self.shared else jax.vmap(function)

    def numbered(self, env: Environment, features: jax.Array) -> jax.Array:
        """The inputs of a shared network, which tell agents apart by their index; others need no index."""
        if not self.shared:
            return features
        index = jnp.eye(env.num_agents, env.team_size)
        return jnp.concatenate([features, jnp.broadcast_to(index, (*features.shape[:-1], index.shape[-1]))], axis=-1)


def vector_space(env: Environment) -> Any:
    """The space of an agent's observations, without the mask of legal actions."""
    return without_parts(env.observation_space, (MASK,))
