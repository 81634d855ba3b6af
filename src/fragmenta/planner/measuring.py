"""Measures units of work on the devices of this machine: compiled as a run would compile them."""

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fragmenta.engines.hardware import keep_compiled_programs
from fragmenta.engines.holding import part_of_state
from fragmenta.engines.limits import usable_memory
from fragmenta.graph import Program
from fragmenta.planner.costs import Cost
from fragmenta.planner.units import Unit
from fragmenta.worker.backends.burst import MOST, compile_burst
from fragmenta.worker.backends.xla import Site, compile_segment, host_devices, spec_of, to_raw
from fragmenta.worker.steps import REPLICA, Key

BLOCK_SECONDS, BLOCKS = 0.05, 7
"""A unit is called for at least so long between two looks at the clock, and so often."""
LONGEST_SECONDS = 0.6
"""After so long no further block is begun, if there are three."""

Call = Callable[[int], None]
"""Runs a unit so many times and waits for the results."""
Compiled = tuple[Callable[[], Call], int | None]
"""Makes the inputs of a unit, when it is its turn: there may be a replay among them. And the memory that it needs
besides these."""
MOST_OF_MEMORY = 0.25
"""Units with larger inputs are not measured: what is in the memory already may be as large."""


@dataclasses.dataclass(frozen=True)
class LoneSite(Site):
    """Where one of several replicas in processes computes: it takes what it would get from the others to be its own."""

    replicas: int = 1

    def spmd(self, function: Callable, inputs: list[int | None], outputs: list[int | None]) -> Callable:
        """A function whose sums and gathers are computed, but exchanged with nobody: nothing has a row per replica."""
        return jax.vmap(function, in_axes=None, out_axes=None, axis_name=self.axis, axis_size=self.replicas)


def site_here(unit: Unit) -> Site | None:
    """Devices of this process that can compute it as those of its fragment would; None if there are too few."""
    program = unit.schedule.program
    devices = host_devices() if unit.kind == "cpu" else jax.local_devices() if _is_here(unit.kind) else []
    if len(devices) < unit.width:
        return None
    if unit.members > 1:
        return LoneSite(tuple(devices[:1]), 1, program.fragment.axis or "", (), unit.members)
    together = program.parts if program.together and program.replicas == 1 else 1
    return Site(tuple(devices[: unit.width]), together, (program.fragment.axis or "") if together > 1 else "")


def measure_units(units: Sequence[Unit], state: Sequence[Any], end: float) -> dict[str, Cost]:
    """The costs of units, by identity. `state` has the leaves to start from, or None where any will do; no unit is
    begun after `end`, by the monotonic clock."""
    keep_compiled_programs()
    costs: dict[str, Cost] = {}
    most = MOST_OF_MEMORY * usable_memory()
    here = [(unit, where) for unit in units if input_bytes(unit) <= most and (where := site_here(unit))]
    with ThreadPoolExecutor(max_workers=4, thread_name_prefix="fragmenta-profile") as pool:
        calls = [pool.submit(_compiled, unit, where, state, end) for unit, where in here]
        ready = [call.result() for call in calls]
    for (unit, _), compiled in zip(here, ready, strict=True):
        if compiled is not None and time.monotonic() < end:
            with contextlib.suppress(RuntimeError, ValueError):  # the run itself will say why it cannot be run
                costs[unit.identity] = dataclasses.replace(_timed(compiled[0]()), memory=compiled[1])
    return costs


def input_bytes(unit: Unit) -> int:
    """Bytes of the inputs of a unit, on all of its devices."""
    shapes, parts = unit.schedule.shapes, unit.schedule.program.parts
    return parts * sum(shapes[key].bytes for key in unit.segment.inputs)


def _is_here(kind: str) -> bool:
    return any(device.platform == kind for device in jax.local_devices())


def _compiled(unit: Unit, where: Site, state: Sequence[Any], end: float) -> Compiled | None:
    if time.monotonic() >= end:
        return None
    schedule = unit.schedule
    keys: set[Key] = {*unit.segment.inputs, *unit.segment.outputs, REPLICA}
    program = schedule.program
    before = [program.graph.state_inputs[i].id for i in program.state]
    after = [program.graph.state_outputs[i].id for i in program.state]
    if unit.is_burst:
        keys |= {*before, *after, *(program.graph.metrics[i].id for i in program.metrics)}
    specs = {key: spec_of(schedule, where, key) for key in keys if key in schedule.shapes}
    known = part_of_state(program, 0, state) if where.together == 1 else _whole(program, state)
    values: dict[Key, Any] = {program.graph.state_inputs[i].id: leaf for i, leaf in known.items()}
    if unit.is_burst:
        burst = compile_burst(schedule, where, specs)
        assert burst is not None
        return lambda: _burst_call(burst, [_value(specs[key], values.get(key)) for key in before]), _memory(burst)
    compiled = compile_segment(unit.segment, schedule, where, specs)
    keys_in = unit.segment.inputs
    return lambda: _segment_call(
        compiled, [_value(specs[key], values.get(key)) for key in keys_in], unit, specs
    ), _memory(compiled)


def _memory(compiled: Any) -> int | None:
    """Bytes that a program needs on a device besides its inputs; None if that is not known of it."""
    analysis = getattr(compiled, "memory_analysis", lambda: None)()
    if analysis is None:
        return None
    return max(0, analysis.temp_size_in_bytes + analysis.output_size_in_bytes - analysis.alias_size_in_bytes)


def _whole(program: Program, state: Sequence[Any]) -> dict[int, Any]:
    """The leaves as replicas that run as one program hold them."""
    return {i: to_raw(state[i]) for i in program.state if isinstance(state[i], jax.Array)}


def _value(spec: jax.ShapeDtypeStruct, known: Any) -> jax.Array:
    """An array for an input: what it is at first, or if that is not known something of its shape."""
    if known is not None and tuple(known.shape) == tuple(spec.shape) and known.dtype == spec.dtype:
        return jax.device_put(jnp.copy(known), spec.sharding)
    if jnp.issubdtype(spec.dtype, jnp.floating) and np.prod(spec.shape) < 2**24:
        values = np.random.default_rng(0).normal(size=spec.shape) * 0.1
        return jax.device_put(jnp.asarray(values, spec.dtype), spec.sharding)
    return jnp.zeros(spec.shape, spec.dtype, device=spec.sharding)


def _burst_call(burst: Callable[..., Any], state: list[jax.Array]) -> Call:
    def call(times: int) -> None:
        for count in [MOST] * (times // MOST) + [times % MOST] * (times % MOST > 0):
            results = burst(np.int32(count), *state)
            state[:] = results[: len(state)]
        jax.block_until_ready(state)

    return call


def _segment_call(compiled: Any, inputs: list[jax.Array], unit: Unit, specs: Mapping[Key, Any]) -> Call:
    """Calls a segment as a worker does, which waits for the results; donated inputs are the outputs that reuse them.
    What stages on the host compute or read crosses to the device or from it every time."""
    given: list[Any] = [np.asarray(value) if i in unit.from_host else value for i, value in enumerate(inputs)]
    kinds = [(s.shape, s.dtype, s.sharding) for s in (specs[key] for key in unit.segment.outputs)]
    followers: dict[int, int] = {}
    donated = [i for i in unit.segment.donated if i not in unit.from_host]
    for i in donated:
        spec = specs[unit.segment.inputs[i]]
        wanted = spec.shape, spec.dtype, spec.sharding
        free = [o for o, kind in enumerate(kinds) if kind == wanted and o not in followers.values()]
        if free:
            followers[i] = free[0]

    def call(times: int) -> None:
        for _ in range(times):
            for i in donated:
                if given[i].is_deleted():
                    given[i] = _value(specs[unit.segment.inputs[i]], None)
            results = compiled(*given)
            jax.block_until_ready(results[:1])
            for o in unit.to_host:
                np.asarray(results[o])
            for i, o in followers.items():
                given[i] = results[o]

    return call


def _timed(call: Call) -> Cost:
    """The median of several blocks of calls."""
    call(1)
    count = 1
    while (took := _seconds(call, count)) < BLOCK_SECONDS / 4 and count < MOST * MOST:
        count *= 4
    count = max(1, round(count * BLOCK_SECONDS / took))
    if count > MOST:  # whole bursts: those of a run are as large, and each takes some time to begin
        count = MOST * round(count / MOST)
    seconds: list[float] = []
    began, busy = time.perf_counter(), time.process_time()
    while len(seconds) < BLOCKS and (len(seconds) < 3 or time.perf_counter() - began < LONGEST_SECONDS):
        seconds.append(_seconds(call, count) / count)
    wall = time.perf_counter() - began
    middle = statistics.median(seconds)
    return Cost(middle, max(0.1, (time.process_time() - busy) / wall))


def _seconds(call: Call, count: int) -> float:
    started = time.perf_counter()
    call(count)
    return time.perf_counter() - started
