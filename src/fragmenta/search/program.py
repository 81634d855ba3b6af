"""One compiled program that trains many rows at once: algorithms that differ in numbers, and their seeds."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fragmenta.algorithms import Algorithm
from fragmenta.algorithms.schedules import variant
from fragmenta.engines import in_place
from fragmenta.envs import Environment
from fragmenta.runs.checkpoints import Checkpoint
from fragmenta.runs.state import from_arrays, to_arrays
from fragmenta.search.variants import stacked
from fragmenta.tracing.iteration import iteration, steps_per_iteration
from fragmenta.tracing.names import is_in, leaf_names
from fragmenta.tracing.trace import trace

MOST = 64
"""Iterations that one call may run: their metrics are buffered on the device."""
CALL_SECONDS = 1.0
"""How long one call should take: between calls the sweep may stop, save, or exchange members of a population."""
METRICS, STATE = "metrics/", "state/"


@dataclasses.dataclass(frozen=True)
class Row:
    """What one row trains."""

    algorithm: Algorithm
    seed: int


class SweepProgram:
    """The loop of an algorithm over rows whose traced fields differ; calls with as many rows compile only once."""

    def __init__(self, template: Algorithm, fields: tuple[str, ...], env: Environment) -> None:
        self.template, self.fields, self.env = template, fields, env
        self.steps_per_iteration = steps_per_iteration(template, trace(template, env).steps)

        def init(row: tuple[dict[str, jax.Array], jax.Array]) -> Any:
            numbers, key = row
            return variant(template, numbers).init(env, key)

        def iterate(numbers: dict[str, jax.Array], state: Any) -> tuple[Any, dict[str, jax.Array]]:
            return iteration(variant(template, numbers), env)(state)

        def burst(count: jax.Array, numbers: dict[str, jax.Array], state: Any) -> tuple[Any, dict[str, jax.Array]]:
            shapes = jax.eval_shape(lambda state: jax.vmap(iterate)(numbers, state)[1], state)
            buffers = jax.tree.map(lambda shape: jnp.zeros((MOST, *shape.shape), shape.dtype), shapes)

            def body(i: jax.Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
                state, buffers = carry
                state, metrics = jax.vmap(iterate)(numbers, state)
                return state, jax.tree.map(lambda buffer, row: buffer.at[i].set(row), buffers, metrics)

            return jax.lax.fori_loop(0, count, body, (state, buffers))

        # Not vmap: batched QR decompositions, as of orthogonal weights, can wait forever for each other on few cores.
        self.init = jax.jit(lambda numbers, keys: jax.lax.map(init, (numbers, keys)))
        self.burst = jax.jit(burst, donate_argnums=2)

    @property
    def iterations(self) -> int:
        """Iterations of a complete training run."""
        return -(-self.template.total_steps // self.steps_per_iteration)


class Training:
    """Rows in training."""

    def __init__(self, program: SweepProgram, rows: Sequence[Row], saved: Checkpoint | None = None) -> None:
        self.program, self.rows = program, list(rows)
        self.iteration, self.metrics = 0, dict[str, np.ndarray]()
        """Iterations done, and all metrics so far: one line per iteration, one column per row."""
        self.seconds = np.zeros(0)
        """When each iteration was done, counted from the start of training."""
        self._per_iteration: float | None = None
        self.renumber()
        self.state = program.init(self._numbers, jnp.stack([jax.random.key(row.seed) for row in rows]))
        self._unsaved = _large_fields(program.template, self.state)
        if saved:
            self._restore(saved)

    @property
    def finished(self) -> bool:
        """Whether all iterations are done."""
        return self.iteration >= self.program.iterations

    @property
    def steps(self) -> int:
        """Environment steps so far, per row."""
        return self.iteration * self.program.steps_per_iteration

    def advance(self, until: int | None = None) -> None:
        """Train all rows for about a second, at most up to the iteration `until`."""
        remaining = (until or self.program.iterations) - self.iteration
        affordable = int(CALL_SECONDS / self._per_iteration) if self._per_iteration else 1
        count = max(1, min(remaining, affordable, MOST))
        started = time.monotonic()
        self.state, metrics = self.program.burst(jnp.int32(count), self._numbers, self.state)
        new = {name: np.asarray(values)[:count] for name, values in metrics.items()}
        elapsed = time.monotonic() - started
        # The first call compiles, so its time says nothing about the next.
        self._per_iteration = elapsed / count if self._per_iteration else CALL_SECONDS
        self.metrics = {
            name: np.concatenate([self.metrics[name], values]) if self.metrics else values
            for name, values in new.items()
        }
        before = self.seconds[-1] if len(self.seconds) else 0.0
        self.seconds = np.concatenate([self.seconds, before + elapsed * np.arange(1, count + 1) / count])
        self.iteration += count

    def renumber(self) -> None:
        """Use the numbers of the rows' algorithms: at the start, and after `rows` has changed."""
        self._numbers = stacked([row.algorithm for row in self.rows], self.program.fields)

    def checkpoint(self) -> Checkpoint:
        """Everything needed to continue, but for a large replay, which fills anew."""
        arrays = {"seconds": self.seconds} | {METRICS + name: values for name, values in self.metrics.items()}
        arrays |= {STATE + name: values for name, values in to_arrays(self.state, self._unsaved).items()}
        return Checkpoint(arrays, self.iteration, self.steps)

    def _restore(self, saved: Checkpoint) -> None:
        arrays = {n.removeprefix(STATE): array for n, array in saved.arrays.items() if n.startswith(STATE)}
        self.state = from_arrays(self.state, arrays, "the checkpoint of the sweep", self._unsaved)
        self.metrics = {n.removeprefix(METRICS): a for n, a in saved.arrays.items() if n.startswith(METRICS)}
        self.iteration, self.seconds = saved.iteration, saved.arrays["seconds"]


def _large_fields(template: Algorithm, state: Any) -> tuple[str, ...]:
    """The fields that fill anew, if they are large over all rows."""
    leaves = zip(leaf_names(state), jax.tree.leaves(state), strict=True)
    size = sum(leaf.nbytes for name, leaf in leaves if is_in(name, template.rebuildable))
    return template.rebuildable if size > in_place.IN_PLACE_BYTES else ()


def row_of(state: Any, index: int) -> Any:
    """The state of one row, as if it were trained alone."""
    return jax.tree.map(lambda leaf: leaf[index], state)
