"""How much of the cores other processes leave."""

import os
from collections.abc import Callable

import pytest

from fragmenta.planner import contention
from fragmenta.planner.contention import available_cores


def shares(monkeypatch: pytest.MonkeyPatch, share_of: Callable[[int | None], float]) -> tuple[float, ...]:
    """What is available where a thread gets this share of each core."""
    monkeypatch.setattr(contention, "share_of", share_of)
    return available_cores()


def test_what_is_left_of_each_core_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = sorted(os.sched_getaffinity(0))
    monkeypatch.setattr(contention, "usable_cores", lambda: len(numbers))
    assert shares(monkeypatch, lambda core: 0.25 if core == numbers[0] else 0.97)[0] == 0.25
    assert shares(monkeypatch, lambda core: 0.25 if core == numbers[0] else 0.97)[1:] == (1.0,) * (len(numbers) - 1)


def test_what_only_takes_a_moment_is_no_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "usable_cores", lambda: 1)
    measured = iter([0.4, 0.99])
    assert shares(monkeypatch, lambda _: next(measured)) == (1.0,)


def test_under_a_limit_of_time_nothing_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "usable_cores", lambda: len(os.sched_getaffinity(0)) + 1)
    asked: list[int | None] = []
    shares(monkeypatch, lambda core: asked.append(core) or 1.0)
    assert set(asked) == {None}


def test_measuring_pins_only_its_own_threads() -> None:
    before = os.sched_getaffinity(0)
    assert all(0 < share <= 1 for share in available_cores())
    assert os.sched_getaffinity(0) == before
