"""Shared by algorithms with a memory of the episode, for environments that observations do not show whole."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fragmenta.algorithms.encoding import Encoded
from fragmenta.algorithms.limits import COUNT, Limit
from fragmenta.algorithms.neural import NeuralAlgorithm
from fragmenta.envs import Environment
from fragmenta.errors import ConfigError
from fragmenta.nn.memory import CELLS, memory_cell


class RecurrentInput(NamedTuple):
    """An observation, and the memory of those before it in the episode."""

    observation: Any
    memory: jax.Array
    ended: Any = ()
    """In training sequences: whether the episode ended with this step, so that the next starts with an empty memory."""


@dataclasses.dataclass(frozen=True)
class Remembering(NeuralAlgorithm):
    """Networks that take the memory of the episode as input, instead of the latest observation."""

    limits: ClassVar[dict[str, Limit]] = {"memory": COUNT, "window": COUNT}

    memory: int = 64
    """Units of the memory."""
    cell: str = "gru"
    """The kind of memory: gru, lstm, or transformer, which attends to the latest steps."""
    window: int = 16
    """Steps that a transformer looks back, with the current one."""

    def validate(self, env: Environment) -> None:
        super().validate(env)
        if self.cell not in CELLS:
            raise ConfigError(f"cell is '{self.cell}': choose from {', '.join(CELLS)}")

    def fresh_memory(self, count: int, agents: int = 1) -> jax.Array:
        return jnp.zeros((count, self._cell().size))

    def init_encoder(self, env: Environment, key: jax.Array, observation: Any) -> tuple[dict[str, Any], Encoded]:
        params, encoded = super().init_encoder(env, key, observation)
        memory = jnp.zeros((*encoded.actor.shape[:-1], self._cell().size))
        params["memory"] = self._cell().init(jax.random.fold_in(key, 2), memory, encoded.actor)
        return params, self.encode(env, params, RecurrentInput(observation, memory))

    def encode(self, env: Environment, params: Any, observation: RecurrentInput) -> Encoded:
        """The features after an observation and what was remembered before."""
        return self.remember(env, params, observation)[1]

    def remember(self, env: Environment, params: Any, observation: RecurrentInput) -> tuple[jax.Array, Encoded]:
        """The memory after an observation, and the features."""
        encoded, inputs = self._inputs(env, params, observation.observation)
        memory, output = self._step(params, observation.memory, inputs)
        return memory, _with_output(encoded, output)

    def remember_all(self, env: Environment, params: Any, sequence: RecurrentInput) -> Encoded:
        """The features after every step of a sequence, which starts from the memory before its first step."""
        return self.remember_on(env, params, sequence, sequence.memory[0])[1]

    def remember_on(
        self, env: Environment, params: Any, sequence: RecurrentInput, start: jax.Array
    ) -> tuple[jax.Array, Encoded, jax.Array]:
        """The memory after a sequence from `start` on, and features and memory after each of its steps, those at the
        end of an episode before it is forgotten."""
        encoded, inputs = self._inputs(env, params, sequence.observation)

        def step(memory: jax.Array, x: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            inputs, ended = x
            memory, output = self._step(params, memory, inputs)
            return clear_ended(ended, memory), (output, memory)

        memory, (outputs, memories) = jax.lax.scan(step, start, (inputs, sequence.ended))
        return memory, _with_output(encoded, outputs), memories

    def _cell(self) -> Any:
        return memory_cell(self.cell, self.memory, self.window, self.compute)

    def _inputs(self, env: Environment, params: Any, observation: Any) -> tuple[Encoded, jax.Array]:
        """The part of a step that does not depend on the memory, for many steps at once."""
        encoded, cell = self.features(env, params, observation), self._cell()
        return encoded, cell.apply(params["memory"], encoded.actor, method=type(cell).inputs)

    def _step(self, params: Any, memory: jax.Array, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        cell = self._cell()
        return cell.apply(params["memory"], memory, inputs, method=type(cell).step)


def clear_ended(ended: jax.Array, memory: jax.Array) -> jax.Array:
    """Zero the memory where an episode ended."""
    return jnp.where(ended[..., None], 0.0, memory)


def _with_output(encoded: Encoded, output: jax.Array) -> Encoded:
    """What was encoded, with the output of the memory in place of the observation's features."""
    for_critics = encoded.critic[..., encoded.actor.shape[-1] :]
    critic = jnp.concatenate([output, for_critics], axis=-1) if for_critics.shape[-1] else output
    return encoded._replace(actor=output, critic=critic)
