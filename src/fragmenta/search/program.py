"""One compiled program that trains many rows at once: algorithms that differ in numbers, and their seeds."""

import dataclasses
import itertools
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fragmenta.algorithms import Algorithm
from fragmenta.envs import Environment
from fragmenta.runs.checkpoints import Checkpoint
from fragmenta.runs.state import from_arrays, to_arrays
from fragmenta.search.variants import stacked, variant
from fragmenta.tracing.iteration import count_steps, iteration

MOST = 64
"""Iterations that one call may run: their metrics are buffered on the device."""
CALL_SECONDS = 1.0
"""How long one call should take: between calls the sweep may stop, save, or exchange members of a population."""
ROWS_PER_DEVICE = 8
"""Fewer rows are not worth another device, for which the program must be compiled once more."""
METRICS, STATE = "metrics/", "state/"


@dataclasses.dataclass(frozen=True)
class Row:
    """What one row trains."""

    algorithm: Algorithm
    seed: int


class Program:
    """The loop of an algorithm over rows whose traced fields differ; calls with as many rows compile only once."""

    def __init__(self, template: Algorithm, fields: tuple[str, ...], env: Environment) -> None:
        self.template, self.fields, self.env = template, fields, env
        self.steps_per_iteration = count_steps(template, env)

        def init(numbers: dict[str, jax.Array], key: jax.Array) -> Any:
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

        self.init = jax.jit(jax.vmap(init))
        self.burst = jax.jit(burst, donate_argnums=2)

    @property
    def iterations(self) -> int:
        """Iterations of a whole training."""
        return -(-self.template.total_steps // self.steps_per_iteration)


class Training:
    """Rows in training, divided among the devices of this process; the devices exchange nothing."""

    def __init__(self, program: Program, rows: Sequence[Row], saved: Checkpoint | None = None) -> None:
        self.program, self.rows = program, list(rows)
        self.iteration, self.metrics = 0, dict[str, np.ndarray]()
        """Iterations done, and all metrics so far: one line per iteration, one column per row."""
        self.seconds = np.zeros(0)
        """When each iteration was done, counted from the start of training."""
        devices = jax.local_devices()[: max(1, len(rows) // ROWS_PER_DEVICE)]
        self._parts = [(device, part) for device, part in zip(devices, _divided(len(rows), len(devices)), strict=True)]
        self._threads = ThreadPoolExecutor(len(devices), thread_name_prefix="fragmenta-sweep")
        self._per_iteration: float | None = None
        self._states = list(self._threads.map(self._initial, self._parts))
        self.renumber()
        if saved:
            self._restore(saved)

    def __enter__(self) -> "Training":
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()

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

        def run(part: int) -> dict[str, np.ndarray]:
            self._states[part], metrics = self.program.burst(jnp.int32(count), self._numbers[part], self._states[part])
            return {name: np.asarray(values)[:count] for name, values in metrics.items()}

        parts = list(self._threads.map(run, range(len(self._parts))))
        if self.iteration:  # the first call compiles
            self._per_iteration = (time.monotonic() - started) / count
        else:
            self._per_iteration = CALL_SECONDS
        new = {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}
        self.metrics = {
            name: np.concatenate([self.metrics[name], values]) if self.metrics else values
            for name, values in new.items()
        }
        before = self.seconds[-1] if len(self.seconds) else 0.0
        ended = before + (time.monotonic() - started) * np.arange(1, count + 1) / count
        self.seconds = np.concatenate([self.seconds, ended])
        self.iteration += count

    def state(self) -> Any:
        """The state of all rows on the host."""
        parts = [jax.device_get(jax.tree.map(_plain, state)) for state in self._states]
        joined = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
        return jax.tree.map(
            lambda leaf, like: jax.random.wrap_key_data(leaf) if _is_key(like) else leaf, joined, self._states[0]
        )

    def place(self, state: Any) -> None:
        """Continue from this state of all rows."""
        leaves, structure = jax.tree.flatten(state)
        self._states = [
            jax.device_put(jax.tree.unflatten(structure, [leaf[part] for leaf in leaves]), device)
            for device, part in self._parts
        ]

    def renumber(self) -> None:
        """Put the numbers of the rows' algorithms onto the devices: at the start, and after `rows` has changed."""
        numbers = stacked([row.algorithm for row in self.rows], self.program.fields)
        self._numbers = [
            jax.device_put({name: values[part] for name, values in numbers.items()}, device)
            for device, part in self._parts
        ]

    def checkpoint(self) -> Checkpoint:
        """Everything needed to continue."""
        arrays = {"seconds": self.seconds} | {METRICS + name: values for name, values in self.metrics.items()}
        arrays |= {STATE + name: values for name, values in to_arrays(self.state()).items()}
        return Checkpoint(arrays, self.iteration, self.steps)

    def _initial(self, placed: tuple[Any, slice]) -> Any:
        device, part = placed
        rows = self.rows[part]
        numbers = stacked([row.algorithm for row in rows], self.program.fields)
        keys = jnp.stack([jax.random.key(row.seed) for row in rows])
        return self.program.init(*jax.device_put((numbers, keys), device))

    def _restore(self, saved: Checkpoint) -> None:
        arrays = {n.removeprefix(STATE): array for n, array in saved.arrays.items() if n.startswith(STATE)}
        self.place(from_arrays(self.state(), arrays, "the checkpoint of the sweep"))
        self.metrics = {n.removeprefix(METRICS): a for n, a in saved.arrays.items() if n.startswith(METRICS)}
        self.iteration, self.seconds = saved.iteration, saved.arrays["seconds"]


def row_of(state: Any, index: int) -> Any:
    """The state of one row, as if it were trained alone."""
    return jax.tree.map(lambda leaf: leaf[index], state)


def _divided(count: int, parts: int) -> list[slice]:
    ends = [count * i // parts for i in range(parts + 1)]
    return [slice(begin, end) for begin, end in itertools.pairwise(ends)]


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf
