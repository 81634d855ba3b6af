"""Kernels are used where they are faster than XLA, by measuring once."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fragmenta.worker.backends.kernel import Rewritten, with_kernels
from fragmenta.worker.kernels.ir import Kernel
from fragmenta.worker.kernels.launch import CudaLaunch
from fragmenta.worker.kernels.tuning import MEASURED, Tuning, device_seconds
from fragmenta.worker.kernels.values import NoRule
from kernel_launchers import launcher


@pytest.fixture(autouse=True)
def nothing_measured() -> None:
    MEASURED.clear()


def doubled(x: jax.Array) -> list[jax.Array]:
    return jax.tree.leaves(jax.lax.scan(lambda carry, _: (carry * 2, carry), x, length=3))


def picked(x: jax.Array, rows: jax.Array) -> list[jax.Array]:
    """A loop over rows that reads numbered ones."""
    return list(jax.lax.scan(lambda carry, _: (carry + x[rows, 0], None), jnp.zeros(rows.shape), length=3)[:1])


@dataclasses.dataclass
class Clock:
    """Times to give out, and what was measured."""

    times: list[float]
    given: list[Any] = dataclasses.field(default_factory=list)

    def seconds(self, function: Any, arrays: Any) -> float:
        self.given.append(arrays)
        jax.eval_shape(function, *arrays)
        return self.times[len(self.given) - 1]


def tuned(clock: Clock, folder: Path | None = None, identity: str = "a device", ways: Any = None) -> Rewritten:
    ways = ways or {"narrow": launcher("interpreted"), "wide": launcher("interpreted")}
    x = jnp.arange(100.0)
    rewritten = with_kernels(doubled, [x], Tuning(lambda _: ways, identity, folder, clock.seconds))
    for actual, expected in zip(rewritten.function(x), doubled(x), strict=True):
        np.testing.assert_array_equal(actual, expected)
    return rewritten


def test_a_faster_kernel_is_used() -> None:
    report = tuned(Clock([3e-3, 5e-3, 1e-3])).report
    assert [kernel.name for kernel in report.kernels] == ["loop0"]
    assert report.remarks == ["loop0: wide 1,000 us (XLA 3,000, narrow 5,000)"]
    assert report.reasons == []


def test_the_fastest_way_is_prepared() -> None:
    made = []

    def way(name: str) -> Any:
        return lambda kernel: made.append(name) or launcher("interpreted")(kernel)

    tuned(Clock([3e-3, 1e-3, 2e-3]), ways={"narrow": way("narrow"), "wide": way("wide")})
    assert sorted(made[:2]) == ["narrow", "wide"]
    assert made[2:] == ["narrow"]


def test_sums_are_tried_with_more_or_less_room_for_registers() -> None:
    launch = CudaLaunch("9.0", 132, None)
    assert list(launch.ways([Kernel("loop", (8,), (), (), 0, ())])) == ["usual"]
    ways = launch.ways([Kernel("rows", (8,), (), (), 3, ())])
    assert list(ways) == ["2 blocks", "3 blocks"]


def test_a_slower_kernel_is_left_to_xla_with_both_times() -> None:
    report = tuned(Clock([1e-3, 5e-3, 2e-3])).report
    assert report.kernels == []
    assert report.reasons == ["loop x3: XLA takes 1,000 us, kernels 2,000 us"]


def test_what_was_measured_is_kept_for_the_same_device(tmp_path: Path) -> None:
    clock = Clock([1e-3, 5e-3, 2e-3, 3e-3, 1e-3, 2e-3])
    tuned(clock, tmp_path)
    assert tuned(clock, tmp_path).report.kernels == []
    MEASURED.clear()  # as in a new process
    assert tuned(clock, tmp_path).report.kernels == []
    assert len(clock.given) == 3
    assert tuned(clock, tmp_path, "another device").report.kernels
    assert len(clock.given) == 6
    assert all(path.suffix == ".json" for path in tmp_path.iterdir())


def test_a_way_that_does_not_fit_the_device_is_passed_over() -> None:
    def refuse(kernel: Any) -> Any:
        raise NoRule(f"{kernel.name} is too large")

    ways = {"narrow": refuse, "wide": launcher("interpreted")}
    assert tuned(Clock([3e-3, 1e-3]), ways=ways).report.kernels
    report = tuned(Clock([3e-3]), ways={"narrow": refuse}).report
    assert report.reasons == ["loop x3: no way of launching its kernel works here"]


def test_measurements_read_no_element_that_is_not_there() -> None:
    clock = Clock([3e-3, 1e-3])
    x, rows = jnp.ones((7, 2)), jnp.zeros(100, jnp.int32)
    with_kernels(picked, [x, rows], Tuning(lambda _: {"usual": launcher("interpreted")}, "", None, clock.seconds))
    drawn = next(array for array in clock.given[0] if array.dtype == np.int32)
    assert drawn.min() >= 0
    assert drawn.max() < 7


@pytest.mark.parametrize("size", [1, 5_000])
def test_a_call_is_timed(size: int) -> None:
    assert 0 < device_seconds(lambda x: x * 2, [np.ones(size, np.float32)]) < 1
