"""Whether kernels are faster than XLA, and launched how: measured once on the device, and kept in a file."""

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fragmenta.tracing.jaxprs import inner_jaxprs, open_jaxpr
from fragmenta.worker.kernels import nvrtc
from fragmenta.worker.kernels.ir import Kernel
from fragmenta.worker.kernels.rewrite import Prepare, Replaceable, Taken
from fragmenta.worker.kernels.values import NoRule

Timer = Callable[[Callable[..., Any], Sequence[np.ndarray]], float]
"""The seconds that a call of a function takes."""
ENOUGH = 0.02
"""Seconds of calls that are timed together."""
DRAWN = 65_521
"""Different numbers in the arrays of a measurement; a prime, so that rows differ."""
XLA = "XLA"
MEASURED: dict[str, dict[str, float]] = {}
"""What this process has measured or read."""
ALONE = threading.Lock()
"""Held while something is measured; fragments are compiled in parallel."""


def identity(device: str) -> str:
    """What measurements hold for: a device, versions, and this compiler of kernels."""
    return "\n".join([device, jax.__version__, importlib.metadata.version("jaxlib"), nvrtc.version(), _own_source()])


@functools.cache
def _own_source() -> str:
    files = sorted(resources.files("fragmenta.worker.kernels").iterdir(), key=lambda file: file.name)
    return hashlib.sha256(b"".join(f.read_bytes() for f in files if f.name.endswith((".py", ".h")))).hexdigest()


def device_seconds(function: Callable[..., Any], arrays: Sequence[np.ndarray]) -> float:
    """The time of a call on the first device, of several in a row."""
    with jax.ensure_compile_time_eval():
        held = [jax.device_put(array) for array in arrays]
        compiled = jax.jit(function).lower(*held).compile()
        results = jax.block_until_ready(compiled(*held))
        best, calls = float("inf"), 1
        for _ in range(3):
            begin = time.perf_counter()
            for _ in range(calls):
                results = compiled(*held)
            jax.block_until_ready(results)
            best = min(best, (time.perf_counter() - begin) / calls)
            calls = max(1, min(200, round(ENOUGH / best)))
    return best


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Chooses between XLA and ways of launching kernels, by measuring what it has not measured before."""

    ways: Callable[[Sequence[Kernel]], dict[str, Prepare]]
    identity: str
    folder: Path | None
    seconds: Timer = device_seconds

    def choose(self, part: Replaceable) -> Taken:
        """How to prepare a part's kernels; NoRule with both times if XLA is faster."""
        ways = self.ways([lowering.kernel for lowering in part.kernels])
        with ALONE:
            times = self._times(part, ways)
        usable = {name: times[name] for name in ways if name in times}
        if not usable:
            raise NoRule("no way of launching its kernel works here")
        best = min(usable, key=lambda name: usable[name])
        if times[XLA] < usable[best]:
            raise NoRule(f"XLA takes {1e6 * times[XLA]:,.0f} us, kernels {1e6 * usable[best]:,.0f} us")
        others = ", ".join(f"{name} {1e6 * seconds:,.0f}" for name, seconds in times.items() if name != best)
        return Taken(ways[best], f"{best} {1e6 * usable[best]:,.0f} us ({others})")

    def _times(self, part: Replaceable, ways: dict[str, Prepare]) -> dict[str, float]:
        shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in part.inputs]
        program = jax.make_jaxpr(part.plain)(*shapes)
        digest = hashlib.sha256("\n".join([self.identity, *ways, str(program)]).encode()).hexdigest()[:32]
        known = self.folder / f"{digest}.json" if self.folder else None
        if digest in MEASURED:
            return MEASURED[digest]
        if known and known.exists():
            return MEASURED.setdefault(digest, json.loads(known.read_text()))
        arrays = measured_arrays(shapes, program)
        with ThreadPoolExecutor() as pool:  # the compiler of kernels takes most of the time
            made = {name: pool.submit(part.with_kernels, prepare) for name, prepare in ways.items()}
        times = {XLA: self.seconds(part.plain, arrays)}
        for name, function in made.items():
            try:
                times[name] = self.seconds(function.result(), arrays)
            except (NoRule, jax.errors.JaxRuntimeError):
                continue  # it does not fit the device
        MEASURED[digest] = times
        if known:
            known.parent.mkdir(parents=True, exist_ok=True)
            partial = known.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps(times))
            partial.rename(known)
        return times


def measured_arrays(shapes: Sequence[Any], program: Any) -> list[np.ndarray]:
    """Arrays to measure a program with: numbers like those of a run, and indices that are inside of what they index."""
    random = np.random.default_rng(0)
    indices = min(_indexed(open_jaxpr(program)[0]), default=2)
    arrays = []
    for shape in shapes:
        dtype = np.dtype(shape.dtype)
        if dtype.kind == "b":
            drawn = random.integers(0, 2, DRAWN)
        elif dtype.kind == "u":
            drawn = random.integers(0, np.iinfo(dtype).max, DRAWN)
        else:
            drawn = random.integers(0, indices, DRAWN) if dtype.kind == "i" else random.standard_normal(DRAWN)
        arrays.append(np.resize(drawn.astype(dtype), shape.shape))
    return arrays


def _indexed(jaxpr: Any) -> Iterator[int]:
    """The numbers of places that computed indices choose from."""
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name in ("gather", "dynamic_slice"):
            operand, sizes = equation.invars[0].aval.shape, equation.params["slice_sizes"]
            chosen = equation.params["dimension_numbers"].start_index_map if name == "gather" else range(len(operand))
            yield from (operand[d] - sizes[d] + 1 for d in chosen if operand[d] != sizes[d] or name == "gather")
        for inner in inner_jaxprs(equation):
            yield from _indexed(open_jaxpr(inner)[0])
