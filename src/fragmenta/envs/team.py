"""Multi-agent environments: a fixed agent axis after the environments, and a mask of active agents."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fragmenta.envs.base import Environment


@dataclasses.dataclass(frozen=True)
class TeamEnvironment(Environment):
    """Several agents that act simultaneously, as pure functions of one instance.

    A subclass defines `initial`, `observe` (one row per agent), `advance` (one action, one reward per agent) and, if
    agents can drop out, `alive`. An episode ends for all agents at once; its return is the mean over the agents.
    """

    agents: int = dataclasses.field(default=1, kw_only=True)
    """Number of agents; those that drop out keep their place on the axis."""
    visible_agents: int | None = dataclasses.field(default=None, kw_only=True)
    """How many agents a trace sees. Replicas along the agents are traced with fewer; they never run `step`."""

    @property
    def num_agents(self) -> int:
        return self.agents if self.visible_agents is None else self.visible_agents

    @property
    def team_size(self) -> int:
        return self.agents

    def with_agents(self, count: int) -> "TeamEnvironment":
        return dataclasses.replace(self, visible_agents=None if count == self.agents else count)

    def alive(self, state: Any) -> jax.Array:
        """Which agents are active, one flag each: all of them, unless a subclass overrides it."""
        return jnp.ones((self.agents,), bool)

    def _visible_rows(self, rows: Any) -> Any:
        return jax.tree.map(lambda x: x[: self.num_agents], rows)

    def _all_actions(self, action: jax.Array) -> jax.Array:
        return jnp.resize(action, (self.agents, *action.shape[1:]))
