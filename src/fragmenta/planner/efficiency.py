"""How many environment steps a plan takes to learn as much as the plain program, as far as that was measured.

From `make bench WHAT=sample_efficiency`: CartPole-v1, 16 environments, 5 seeds; the table is in docs/planner.md. It is
little: three algorithms on one easy environment. Everything else is taken to be like them on average.
"""

import dataclasses
from typing import Literal

import numpy as np

from fragmenta.algorithms import Algorithm
from fragmenta.algorithms.named import algorithm_name
from fragmenta.graph import Plan

Objective = Literal["speed", "return"]
"""What makes a plan the best: the most steps per second, or the shortest time to a return."""
LAGS = (0.0, 1.0, 3.9, 7.8)
"""The lags, in versions of the parameters, for which the next table has a number; between them it is interpolated."""


@dataclasses.dataclass(frozen=True)
class Sensitivity:
    """How the steps that an algorithm needs depend on the plan."""

    batch: float
    """The exponent with which they grow with the batch of an update: 1 if only the number of updates counts."""
    lagging: tuple[float, ...]
    """By how much they are multiplied for each lag of `LAGS`, with the same batch; at least 1."""


MEASURED = {
    "ppo": Sensitivity(batch=0.45, lagging=(1.0, 1.0, 1.0, 1.07)),
    "impala": Sensitivity(batch=0.26, lagging=(1.0, 1.07, 3.2, 4.7)),
    "a2c": Sensitivity(batch=0.39, lagging=(1.0, 1.0, 1.08, 2.3)),
}
UNKNOWN = Sensitivity(batch=0.37, lagging=(1.0, 1.02, 1.51, 2.26))
"""The (geometric) mean of these, for all others."""
MOST_PARTS = 4
"""Nothing is known of batches that are smaller than by this factor: they count as if they were not."""


@dataclasses.dataclass(frozen=True)
class Goal:
    """What makes one plan better than another."""

    algorithm: Algorithm
    objective: Objective = "speed"

    def steps_needed(self, plan: Plan, lag: float | None = None) -> float:
        """The steps until a return, as a multiple of those of the plain program with the same hyper-parameters: 1 for
        all plans that give its result. `lag` is how many versions acting is behind learning; None to assume one."""
        if not plan.lags:
            return 1.0
        known = MEASURED.get(algorithm_name(self.algorithm), UNKNOWN)
        lagging = np.interp(1.0 if lag is None else lag, LAGS, known.lagging)
        return float(min(plan.arrivals, MOST_PARTS) ** -known.batch * lagging)

    def value(self, rate: float, plan: Plan, lag: float | None = None) -> float:
        """What to compare plans by: steps per second, for a return those that count."""
        return rate / self.steps_needed(plan, lag) if self.objective == "return" else rate
