"""Shared by algorithms for teams whose agents may remember the episode, each what it observed itself."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from fragmenta.algorithms.encoding import Encoded
from fragmenta.algorithms.remembering import RecurrentInput, Remembering
from fragmenta.algorithms.team import TeamNetworks
from fragmenta.envs import Environment
from fragmenta.errors import ConfigError
from fragmenta.nn.memory import CELLS
from fragmenta.rl.teams import TeamView, present


@dataclasses.dataclass(frozen=True)
class TeamMemory(TeamNetworks, Remembering):
    """Networks of agents that take what an agent remembers as input, if there is a memory."""

    cell: str = "none"
    """The memory of the episode: none, gru, lstm, or transformer, which attends to the latest steps."""

    def validate(self, env: Environment) -> None:
        super(Remembering, self).validate(env)
        if self.cell not in ("none", *CELLS):
            raise ConfigError(f"cell is '{self.cell}': choose from none, {', '.join(CELLS)}")

    @property
    def remembers(self) -> bool:
        """Whether agents have a memory."""
        return self.cell != "none"

    def fresh_memory(self, count: int, agents: int = 1) -> Any:
        return jnp.zeros((count, agents, self._cell().size)) if self.remembers else ()

    def init_encoder(self, env: Environment, key: jax.Array, observation: Any) -> tuple[dict[str, Any], Encoded]:
        kind = TeamMemory if self.remembers else Remembering
        return super(kind, self).init_encoder(env, key, observation)

    def encode(self, env: Environment, params: Any, observation: Any) -> Encoded:
        kind = TeamMemory if self.remembers else Remembering
        return super(kind, self).encode(env, params, observation)

    def remember_each(self, env: Environment, params: Any, view: TeamView, memory: Any) -> tuple[Any, Encoded]:
        """The memory of every agent after a step, and what its networks see; zero if it dropped out."""
        if not self.remembers:
            return (), self.seen(env, params, view)
        inputs = RecurrentInput(present(view.alive, view.observation), memory)
        remember = functools.partial(self.remember, env)
        memory, encoded = self.for_agents(remember, params, inputs, view.alive.ndim - 1)
        return memory, present(view.alive, encoded)

    def remember_sequence(
        self, env: Environment, params: Any, view: TeamView, memory: Any, ended: jax.Array
    ) -> Encoded:
        """What the networks see at every step of a sequence, of which only the memory before the first step is used;
        `ended` says of each agent where an episode ended."""
        if not self.remembers:
            return self.seen(env, params, view)
        inputs = RecurrentInput(present(view.alive, view.observation), memory, ended)
        remember = functools.partial(self.remember_all, env)
        return present(view.alive, self.for_agents(remember, params, inputs, view.alive.ndim - 1))

    def kept(self, ended: jax.Array, memory: Any) -> Any:
        """The memory after a step: empty where an episode ended."""
        return jnp.where(ended[..., None], 0.0, memory) if self.remembers else memory
