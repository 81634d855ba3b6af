"""Predicts how fast candidates are, and chooses one."""

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from fragmenta.planner.candidates import Candidate
from fragmenta.planner.channel_timing import measure_channels
from fragmenta.planner.channels import is_noted, kinds_of
from fragmenta.planner.costs import Cost
from fragmenta.planner.measuring import measure_units
from fragmenta.planner.memory import memory_of, shortage
from fragmenta.planner.plan_costs import PlanCosts
from fragmenta.planner.profile import Profile
from fragmenta.planner.shortening import iteration_seconds
from fragmenta.planner.simulate import MOST_SIMULATED, Simulation, simulate
from fragmenta.planner.units import Unit
from fragmenta.policies.machines import Machines

PROMISING = 0.6
"""Candidates whose estimate is below this share of the best one are not measured."""
BRIEF = 1, 1
"""Iterations that are simulated for an estimate: one before that which counts."""
CLEARLY = 1.03
"""A candidate has to be so much faster than a simpler one to be chosen."""


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What a candidate would do."""

    candidate: Candidate
    simulation: Simulation
    steps_per_second: float
    is_estimate: bool
    """Whether some of what it computes was estimated, not measured."""


class Predictor:
    """Predicts candidates on one set of machines; what is measured is kept in a profile."""

    def __init__(
        self,
        profile: Profile,
        machines: Machines,
        is_here: bool,
        state: Callable[[], Sequence[Any]],
        stepping: Callable[[Candidate, bool], Cost | None],
        steps: Callable[[Candidate], int],
        shares: Sequence[float] = (),
    ) -> None:
        """`state` returns the initial leaves of the state, `stepping` what a step of a lane of host environments costs,
        as measured or else as is known already, `steps` the environment steps of an iteration; `shares` are what other
        processes leave of the cores of the machine at hand, by default all."""
        self.profile, self.machines, self._is_here = profile, machines, is_here
        self._state, self._stepping, self._steps, self._shares = state, stepping, steps, shares
        self._rates: dict[tuple[int, int], tuple[Candidate, float]] = {}
        """What `rate` found, by the id of the candidate, which is kept alive so that no other one gets it."""

    def predict(self, candidate: Candidate, *settings: Any) -> Prediction:
        """Simulate a candidate with what is known; `settings` are those of `simulate`."""
        costs = self.costs(candidate)
        simulation = simulate(candidate.plan, candidate.schedules, costs, *settings)
        is_estimate = not self._is_here or not self.is_known(candidate)
        rate = self._steps(candidate) / simulation.seconds
        return Prediction(candidate, simulation, rate, is_estimate)

    def expected_rate(self, candidate: Candidate) -> float:
        """About how many steps per second it takes, without measuring anything."""
        costs = self.costs(candidate, quickly=True)
        return self._steps(candidate) / simulate(candidate.plan, candidate.schedules, costs).seconds

    def rate(self, candidate: Candidate, most: int) -> float:
        """The predicted steps per second alone, which takes less time; `most` replicas of a fragment are simulated."""
        key = id(candidate), most
        if key not in self._rates:
            seconds = iteration_seconds(candidate.plan, candidate.schedules, self.costs(candidate), most)
            self._rates[key] = candidate, self._steps(candidate) / seconds
        return self._rates[key][1]

    def measure(self, candidate: Candidate, end: float) -> bool:
        """Measure what is not known of a candidate, until `end` by the monotonic clock; whether all of it is known."""
        self._rates.clear()
        units = self.costs(candidate).units
        measure_channels(self.profile, self._unknown_channels(candidate))
        missing = {unit.identity: unit for unit in units if unit.identity not in self.profile.units}
        costs = measure_units(list(missing.values()), self._state(), end)
        for unit in missing.values():
            self.profile.add([unit], costs, self._device(candidate, unit))
        return len(costs) == len(missing)

    def shortage(self, candidate: Candidate) -> str | None:
        """What does not fit the memory of a device, in words; None if all does."""
        return shortage(candidate.plan, memory_of(candidate.plan, self.costs(candidate)), self.machines)

    def is_known(self, candidate: Candidate) -> bool:
        """Whether all that it computes was measured."""
        known = all(unit.identity in self.profile.units for unit in self.costs(candidate).units)
        return known and not self._unknown_channels(candidate)

    def _unknown_channels(self, candidate: Candidate) -> list[str]:
        """The kinds of its channels that are not measured yet."""
        return [kind for kind in kinds_of(candidate.plan, candidate.is_apart) if not is_noted(self.profile, kind)]

    def lane_seconds(self, candidate: Candidate) -> float:
        """Seconds of a step of one lane of environments on the host, as measured; 0 without any."""
        cost = self._stepping(candidate, False)
        return cost.seconds if cost else 0.0

    def _device(self, candidate: Candidate, unit: Unit) -> Any:
        return self.costs(candidate).device(unit.schedule.program.fragment.devices[0])

    def costs(self, candidate: Candidate, quickly: bool = False) -> PlanCosts:
        """What the steps of a candidate cost, by what is known."""
        return PlanCosts(
            candidate.plan,
            itertools.chain(*candidate.units.values()),
            self.profile,
            self.machines,
            candidate.is_apart,
            self._is_here,
            lambda _: self._stepping(candidate, quickly),
            self._shares,
        )


def search(predictor: Predictor, options: Sequence[Candidate], seconds: float) -> list[Prediction]:
    """Predictions of all candidates, the fastest first. The first is measured, and promising others for a while: none
    is begun that would not be half done by then, if it took as long as the one before."""
    began = time.monotonic()
    for option in options[:1] if seconds > 0 else ():  # the simplest: what is learned from it corrects the estimates
        predictor.measure(option, math.inf)
    took = time.monotonic() - began
    end = time.monotonic() + seconds
    attempted = {id(option) for option in options[:1]}
    known: dict[int, Prediction] = {}
    while True:
        # What is known stays; of an estimate, which may change with whatever is measured, little is simulated.
        for option in options:
            if id(option) not in known and predictor.is_known(option):
                known[id(option)] = predictor.predict(option)
        predictions = [known.get(id(option)) or predictor.predict(option, *_settings(option)) for option in options]
        ranked = sorted(predictions, key=lambda prediction: -prediction.steps_per_second)
        least = PROMISING * ranked[0].steps_per_second
        waiting = [p.candidate for p in ranked if p.steps_per_second >= least and id(p.candidate) not in attempted]
        waiting = [candidate for candidate in waiting if id(candidate) not in known]
        if not waiting or time.monotonic() + took / 2 >= end:
            return ranked
        attempted.add(id(waiting[0]))
        began = time.monotonic()
        predictor.measure(waiting[0], end)
        took = time.monotonic() - began


def _settings(option: Candidate) -> tuple[Any, ...]:
    """Those of `simulate` for an estimate; how far a candidate lags behind takes longer to be steady."""
    return (MOST_SIMULATED, BRIEF) if option.keeps_result else ()
