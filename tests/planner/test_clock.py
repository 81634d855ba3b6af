"""Virtual time: processes that share resources, wait for each other and are called later."""

from collections.abc import Iterator
from typing import Any

import pytest

from fragmenta.planner.clock import Load, Process, Signal, VirtualClock


def finished(clock: VirtualClock, loads: list[tuple[float, dict[str, float]]]) -> list[float]:
    """When each of several loads ends that begin together."""
    ends = [0.0] * len(loads)

    def process(number: int, seconds: float, demands: dict[str, float]) -> Process:
        yield Load(seconds, demands)
        ends[number] = clock.now

    for number, (seconds, demands) in enumerate(loads):
        clock.start(process(number, seconds, demands))
    clock.run()
    return ends


def test_loads_that_share_nothing_do_not_slow_down() -> None:
    assert finished(VirtualClock({"a": 1.0, "b": 1.0}), [(2.0, {"a": 1.0}), (3.0, {"b": 1.0})]) == [2.0, 3.0]


def test_loads_that_ask_for_more_than_there_is_slow_down_alike() -> None:
    # Both at half speed until the first is done after 2 s; the second then has 2 of its 3 seconds left.
    assert finished(VirtualClock({"core": 1.0}), [(1.0, {"core": 1.0}), (3.0, {"core": 1.0})]) == [2.0, 4.0]
    assert finished(VirtualClock({"core": 2.0}), [(1.0, {"core": 1.0})] * 4) == pytest.approx([2.0] * 4)


def test_a_load_larger_than_the_machine_takes_longer() -> None:
    assert finished(VirtualClock({"core": 2.0}), [(1.0, {"core": 4.0})]) == [2.0]


def test_the_scarcest_resource_decides() -> None:
    clock = VirtualClock({"core": 1.0, "wire": 1.0})
    assert finished(clock, [(1.0, {"core": 1.0, "wire": 1.0}), (1.0, {"wire": 3.0})]) == pytest.approx([4.0, 4.0])


def test_a_process_waits_until_it_is_notified() -> None:
    clock, changed, seen = VirtualClock({}), Signal(), []

    def waiting() -> Iterator[Any]:
        yield changed
        seen.append(clock.now)

    clock.start(waiting())
    clock.later(5.0, lambda: clock.notify(changed))
    clock.run()
    assert seen == [5.0]


def test_nothing_left_to_do_ends_it() -> None:
    clock = VirtualClock({})

    def forever() -> Process:
        yield Signal()

    clock.start(forever())
    clock.run()
    assert clock.now == 0.0
