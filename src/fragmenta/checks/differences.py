"""Compare two snapshots of the same loop: exactly for integers and keys, up to rounding for floats."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

RELATIVE = 1e-5
"""Tolerance for an entry, relative to the largest one of its leaf: sums are evaluated in a different order."""
ROUNDINGS = 4
"""The same for types too coarse for that, such as bfloat16: in units of machine epsilon."""
STATE_FLOOR, METRIC_FLOOR = 1e-2, 1.0
"""Lower bounds for a leaf's largest entry. A parameter near zero is a sum of updates of about 0.01 that cancel, and a
metric a small difference of terms of about 1; both have the rounding error of their terms."""


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The state after an iteration and the metrics of that iteration, by leaf name."""

    state: Mapping[str, np.ndarray]
    metrics: Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first leaf in which two snapshots differ, and its entry that differs most."""

    leaf: str
    """As in `learner.params.kernel_0`; for a metric, as in `metric loss`."""
    iteration: int
    """After how many iterations; 0 is the state that training begins with."""
    index: tuple[int, ...]
    expected: Any
    """The value in the plain program, or the type and shape if those differ."""
    actual: Any

    def __str__(self) -> str:
        where = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        when = f"after iteration {self.iteration}" if self.iteration else "before the first iteration"
        return f"{self.leaf}{where} {when}: expected {self.expected}, found {self.actual}"


@dataclasses.dataclass(frozen=True)
class Gap:
    """How far apart two snapshots are."""

    bitwise: bool
    largest: float
    """Relative to the largest entry of the leaf; infinite if values differ that must be identical."""
    difference: Difference | None
    """None if no leaf differs by more than rounding."""


def gap(expected: Snapshot, actual: Snapshot, iteration: int, relative: float) -> Gap:
    """Compare every leaf of the state and every metric; floats may differ by `relative`, as from `rounding`."""
    bitwise, largest, first = True, 0.0, None
    for leaf, a, b, floor in _pairs(expected, actual):
        if a.shape != b.shape or a.dtype != b.dtype:
            distance, index, values = np.inf, (), (_kind(a), _kind(b))
        else:
            bitwise &= a.tobytes() == b.tobytes()
            distance, index = _distance(a, b, floor)
            values = (a[index].item(), b[index].item()) if a.size else (None, None)
        bitwise &= distance == 0
        largest = max(largest, distance)
        if first is None and distance > (relative if _is_float(a) else 0.0):
            first = Difference(leaf, iteration, index, *values)
    return Gap(bitwise, largest, first)


def rounding(program: str) -> float:
    """Tolerance for floats in a lowered program: RELATIVE, or more if it computes in coarser types."""
    coarse = {"bf16": jnp.bfloat16, "f16": jnp.float16}
    used = {coarse[name] for name in re.findall(r"[x<](bf16|f16)>", program)}
    return max([RELATIVE, *(ROUNDINGS * float(jnp.finfo(dtype).eps) for dtype in used)])


def _pairs(expected: Snapshot, actual: Snapshot) -> Iterator[tuple[str, np.ndarray, np.ndarray, float]]:
    for name, leaf in expected.state.items():
        yield name, leaf, actual.state[name], STATE_FLOOR
    for name, leaf in expected.metrics.items():
        yield f"metric {name}", leaf, actual.metrics[name], METRIC_FLOOR


def _distance(a: np.ndarray, b: np.ndarray, floor: float) -> tuple[float, tuple[int, ...]]:
    """The largest distance between two entries, and its index."""
    if not a.size:
        return 0.0, ()
    if not _is_float(a):
        distances = np.where(a == b, 0.0, np.inf)
    else:
        wide = np.complex128 if jnp.issubdtype(a.dtype, np.complexfloating) else np.float64
        a, b = a.astype(wide), b.astype(wide)
        sizes = np.abs(a[np.isfinite(a)])
        with np.errstate(invalid="ignore"):  # inf - inf, which counts as equal
            distances = np.abs(a - b) / max(sizes.max(initial=0.0), floor)
        distances = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, distances)
        distances = np.where(np.isnan(distances), np.inf, distances)
    index = np.unravel_index(np.argmax(distances), distances.shape)
    return float(distances[index]), tuple(int(i) for i in index)


def _is_float(leaf: np.ndarray) -> bool:
    return jnp.issubdtype(leaf.dtype, np.inexact)


def _kind(leaf: np.ndarray) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"
