"""Shared by algorithms for teams: one network for all agents or one for each, and which teams they take."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fragmenta.algorithms.encoding import Encoded
from fragmenta.algorithms.neural import NeuralAlgorithm
from fragmenta.envs import Discrete, Environment
from fragmenta.errors import ConfigError
from fragmenta.rl.teams import TeamView, present

ENCODERS = ("encoder", "critic_encoder", "memory")
"""The networks that make features of observations, by name."""

NO_MEMORY = "its replay holds single steps; use mappo or ippo"
"""What to do for a memory instead, for an algorithm with a replay."""


@dataclasses.dataclass(frozen=True)
class TeamNetworks(NeuralAlgorithm):
    """The networks of the agents of a team."""

    shared: bool = True
    """Share networks among all agents; otherwise each has its own networks and optimizer, on the leaves' first axis."""

    def check_agents(self, env: Environment) -> None:
        """Raise ConfigError unless it is a team with actions that the algorithm takes."""
        if env.team_size is None or not self.takes_actions(env):
            problem = f"{type(env).__name__} is not a team with {self.action_kinds} actions"
            raise ConfigError(f"{problem}: choose a team such as jaxmarl:simple_spread, or another algorithm")

    @property
    def action_kinds(self) -> str:
        """The kinds of action spaces that the algorithm takes, in words."""
        return "discrete"

    def takes_actions(self, env: Environment) -> bool:
        """Whether the algorithm can act in the environment."""
        return isinstance(env.action_space, Discrete)

    def fresh_memory(self, count: int, agents: int = 1) -> Any:
        return jax.tree.map(lambda x: jnp.repeat(x[:, None], agents, axis=1), super().fresh_memory(count))

    def encode_each(self, env: Environment, params: Any, view: TeamView) -> Encoded:
        """What the networks of every agent see of its observations; zero if it dropped out."""
        return self.remember_each(env, params, view, ())[1]

    def remember_each(self, env: Environment, params: Any, view: TeamView, memory: Any) -> tuple[Any, Encoded]:
        """The memory of every agent after a step, and what its networks see; zero if it dropped out."""
        inputs = self.with_memory(present(view.alive, view.observation), memory)
        remember = functools.partial(self.remember, env)
        memory, encoded = self.for_agents(remember, params, inputs, view.alive.ndim - 1)
        return memory, present(view.alive, encoded)

    def remember_sequence(
        self, env: Environment, params: Any, view: TeamView, memory: Any, ended: jax.Array
    ) -> Encoded:
        """What the networks see at every step of a sequence, of which only the memory before the first step is used;
        `ended` says of each agent where an episode ended."""
        inputs = self.with_memory(present(view.alive, view.observation), memory, ended)
        encode = functools.partial(self.encode_all, env)
        return present(view.alive, self.for_agents(encode, params, inputs, view.alive.ndim - 1))

    def for_agents(self, function: Callable[[Any, Any], Any], params: Any, inputs: Any, axis: int) -> Any:
        """Apply a function of one agent's encoders and inputs to those of all agents, which are an axis of the inputs
        and of the results; `params` may hold more than the encoders."""
        encoders = of_encoders(params)
        each = function if self.shared or not encoders else jax.vmap(function, (0, axis), axis)
        return each(encoders, inputs)

    def init_each(self, env: Environment, init: Callable[[jax.Array], Any], key: jax.Array) -> Any:
        """What `init` makes of a key: once for all agents, or once for each."""
        if self.shared:
            return init(key)
        # Not vmap: batched QR decompositions, as of orthogonal weights, can wait forever for each other on few cores.
        return jax.lax.map(init, jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(env.num_agents)))

    def init_agent(self, env: Environment, key: jax.Array, observation: Any) -> tuple[dict[str, Any], Encoded]:
        """The encoders of one agent, and what its networks see; `observation` is that of all agents."""
        row = jax.tree.map(lambda x: jnp.zeros((1, *x.shape[2:]), x.dtype), observation)
        return self.init_encoder(env, key, row)

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

    def empty_inputs(self, env: Environment, width: int) -> jax.Array:
        """What `numbered` makes of so many features of one agent, all zero."""
        assert env.team_size is not None
        return jnp.zeros((1, width + (env.team_size if self.shared else 0)))


def of_encoders(params: Any) -> dict[str, Any]:
    """The parameters of the encoders."""
    return {name: params[name] for name in ENCODERS if name in params}
