"""Environments with several agents: a fixed agent axis after the environments, and a mask of who takes part."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fragmenta.envs.base import Environment


@dataclasses.dataclass(frozen=True)
class TeamEnvironment(Environment):
    """Several agents that act at once, as pure functions of one instance.

    A subclass writes `initial`, `observe` (one row per agent), `advance` (one action, one reward per agent) and, where
    agents can drop out, `alive`. An episode ends for all agents at once; its return is the mean over the agents.
    """

    agents: int = dataclasses.field(default=1, kw_only=True)
    """How many agents there are; those that drop out keep their place on the axis."""
    seen: int | None = dataclasses.field(default=None, kw_only=True)
    """How many of them a trace sees. Replicas along the agents are traced with fewer; they never run `step`."""

    @property
    def num_agents(self) -> int:
        return self.agents if self.seen is None else self.seen

    @property
    def team_size(self) -> int:
        return self.agents

    def with_agents(self, count: int) -> "TeamEnvironment":
        return dataclasses.replace(self, seen=None if count == self.agents else count)

    def alive(self, state: Any) -> jax.Array:
        """Which agents take part, one flag each: all of them, unless a subclass says otherwise."""
        return jnp.ones((self.agents,), bool)

    def _seen(self, rows: Any) -> Any:
        return jax.tree.map(lambda x: x[: self.num_agents], rows)

    def _everybody(self, action: jax.Array) -> jax.Array:
        return jnp.resize(action, (self.agents, *action.shape[1:]))
