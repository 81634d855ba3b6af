"""Shared by all algorithms with networks: a memory of the episode, for environments that observations do not show
whole."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fragmenta.algorithms.encoding import Encoded, Encoding
from fragmenta.algorithms.limits import COUNT, Limit
from fragmenta.algorithms.own_parts import own_cell
from fragmenta.algorithms.part_checks import check_cell
from fragmenta.envs import Environment, Transition
from fragmenta.errors import ConfigError
from fragmenta.nn.memory import NO_CELL


class RecurrentInput(NamedTuple):
    """An observation, and the memory of those before it in the episode."""

    observation: Any
    memory: jax.Array
    ended: Any = ()
    """In training sequences: whether the episode ended with this step, so that the next starts with an empty memory."""


@dataclasses.dataclass(frozen=True)
class Remembering(Encoding):
    """Networks that take the memory of the episode as input, instead of the latest observation, if there is a cell."""

    limits: ClassVar[dict[str, Limit]] = {"memory": COUNT, "window": COUNT}

    without_memory: ClassVar[str] = "leave it out"
    """What to do instead, for an algorithm that has no memory; empty if it takes any cell."""

    in_chunks: ClassVar[bool] = False
    """Whether it learns from parts of trajectories, which need the memory before each of their steps."""

    cell: Any = NO_CELL
    """The memory of the episode: none, gru, lstm, transformer (attends to the latest steps), or module:Class."""
    memory: int = 64
    """Units of the memory, if there is one."""
    window: int = 16
    """Steps that a transformer looks back, with the current one."""

    def validate(self, env: Environment) -> None:
        super().validate(env)
        if self.remembers and self.without_memory:
            problem = f"cell is '{self.cell}', but {type(self).__name__} has no memory of the episode"
            raise ConfigError(f"{problem}: {self.without_memory}")
        if self.remembers:
            check_cell(self._cell(), self.cell)

    @property
    def remembers(self) -> bool:
        """Whether there is a memory."""
        return self.cell != NO_CELL

    def fresh_memory(self, count: int, agents: int = 1) -> Any:
        return jnp.zeros((count, self._cell().size)) if self.remembers else ()

    def with_memory(self, observation: Any, memory: Any, ended: Any = ()) -> Any:
        """What the networks take: observations, with the memory before them if there is one."""
        return RecurrentInput(observation, memory, ended) if self.remembers else observation

    def init_encoder(self, env: Environment, key: jax.Array, observation: Any) -> tuple[dict[str, Any], Encoded]:
        params, encoded = super().init_encoder(env, key, observation)
        if not self.remembers:
            return params, encoded
        memory = jnp.zeros((*encoded.actor.shape[:-1], self._cell().size))
        params["memory"] = self._cell().init(jax.random.fold_in(key, 2), memory, encoded.actor)
        return params, self.encode(env, params, RecurrentInput(observation, memory))

    def encode(self, env: Environment, params: Any, observation: Any) -> Encoded:
        """The network inputs for a batch of what `with_memory` returns."""
        return self.remember(env, params, observation)[1]

    def encode_all(self, env: Environment, params: Any, sequence: Any) -> Encoded:
        """The same for the steps of a sequence, of which only the memory before the first step is used."""
        if not self.remembers:
            return self.encode(env, params, sequence)
        return self.remember_on(env, params, sequence, sequence.memory[0])[1]

    def remember(self, env: Environment, params: Any, observation: Any) -> tuple[Any, Encoded]:
        """The memory after an observation, and the features."""
        if not self.remembers:
            return (), self.features(env, params, observation)
        encoded, inputs = self._inputs(env, params, observation.observation)
        memory, output = self._step(params, observation.memory, inputs)
        return memory, _with_output(encoded, output)

    def remember_on(
        self, env: Environment, params: Any, sequence: RecurrentInput, start: jax.Array
    ) -> tuple[jax.Array, Encoded, jax.Array]:
        """The memory after a sequence from `start` on, and features and memory after each of its steps, those at the
        end of an episode before it is forgotten."""
        encoded, inputs = self._inputs(env, params, sequence.observation)

        def step(memory: jax.Array, x: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            inputs, ended = x
            memory, output = self._step(params, memory, inputs)
            return self.kept(ended, memory), (output, memory)

        memory, (outputs, memories) = jax.lax.scan(step, start, (inputs, sequence.ended))
        return memory, _with_output(encoded, outputs), memories

    def with_next_memory(self, env: Environment, params: Any, trajectory: Transition) -> tuple[Encoded, Transition]:
        """The features of every step, and the trajectory with the memory after each step beside its next observation,
        if there is one."""
        inputs = trajectory.observation
        if not self.remembers:
            return self.encode(env, params, inputs), trajectory
        if self.in_chunks:  # the memory before each step is known, so that one step need not wait for another
            memories, encoded = self.remember(env, params, inputs)
        else:
            _, encoded, memories = self.remember_on(env, params, inputs, inputs.memory[0])
        return encoded, trajectory._replace(next_observation=RecurrentInput(trajectory.next_observation, memories))

    def kept(self, ended: jax.Array, memory: Any) -> Any:
        """The memory after a step: zero where an episode ended."""
        return jnp.where(ended[..., None], 0.0, memory) if self.remembers else memory

    def _cell(self) -> Any:
        return own_cell(self.cell, self.memory, self.window, self.compute_type)

    def _inputs(self, env: Environment, params: Any, observation: Any) -> tuple[Encoded, jax.Array]:
        """The part of a step that does not depend on the memory, for many steps at once."""
        encoded, cell = self.features(env, params, observation), self._cell()
        return encoded, cell.apply(params["memory"], encoded.actor, method=type(cell).inputs)

    def _step(self, params: Any, memory: jax.Array, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        cell = self._cell()
        return cell.apply(params["memory"], memory, inputs, method=type(cell).step)


def _with_output(encoded: Encoded, output: jax.Array) -> Encoded:
    """What was encoded, with the output of the memory in place of the observation's features."""
    for_critics = encoded.critic[..., encoded.actor.shape[-1] :]
    critic = jnp.concatenate([output, for_critics], axis=-1) if for_critics.shape[-1] else output
    return encoded._replace(actor=output, critic=critic)
