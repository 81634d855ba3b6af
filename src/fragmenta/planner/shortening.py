"""The time of an iteration from a few rounds of its loops: simulating all of them takes longer, and tells the same."""

import dataclasses
from collections.abc import Mapping, Sequence

from fragmenta.graph import Plan
from fragmenta.planner.costs import Costs
from fragmenta.planner.simulate import ITERATIONS, WARM_UP, simulate
from fragmenta.worker.steps import Rounds, Schedule, Step

FEW, MORE = 4, 8
"""Rounds of a loop in either of two simulations; the difference is what a round takes."""
PERIODS = 1, 1


def iteration_seconds(plan: Plan, schedules: Mapping[str, Schedule], costs: Costs, most: int) -> float:
    """The seconds of an iteration, as `simulate` finds them where nothing varies; `most` is as there."""
    settings = most, ((WARM_UP, ITERATIONS) if plan.lags else PERIODS)
    lengths = sorted({length for schedule in schedules.values() for length in _lengths(schedule.steps)})
    few = dict.fromkeys(lengths, FEW)
    base = simulate(plan, _cut(schedules, few), costs, *settings).seconds
    seconds = base
    for length in lengths:
        longer = simulate(plan, _cut(schedules, few | {length: MORE}), costs, *settings).seconds
        seconds += (length - FEW) * (longer - base) / (MORE - FEW)
    return seconds


def _lengths(steps: Sequence[Step]) -> list[int]:
    """The lengths of long loops that are not within others."""
    return [step.length for step in steps if isinstance(step, Rounds) and step.length > MORE]


def _cut(schedules: Mapping[str, Schedule], lengths: Mapping[int, int]) -> dict[str, Schedule]:
    return {
        name: dataclasses.replace(
            schedule,
            steps=tuple(
                dataclasses.replace(step, length=lengths.get(step.length, step.length))
                if isinstance(step, Rounds)
                else step
                for step in schedule.steps
            ),
        )
        for name, schedule in schedules.items()
    }
