"""Compare the speed of a run with its prediction, and change the plan while it trains.

Between two stretches the state is whole: another engine continues from it, so that the result stays the same.
"""

import collections
import contextlib
import dataclasses
import time
from typing import Any

import jax

from fragmenta.engines import Engine
from fragmenta.engines.in_place import in_place
from fragmenta.engines.limits import free_memory
from fragmenta.runs.history import record_change
from fragmenta.training.log import RunLog
from fragmenta.training.planning import PlannedRun
from fragmenta.training.prepared import PreparedRun, start_engine
from fragmenta.training.services import write_plan
from fragmenta_host.episodes import joined

TOLERANCE = 0.3
"""The share of the prediction by which the measured speed may differ from it."""
SPAN_SECONDS = 1.0
"""The shortest time over which speed is measured; shorter stretches count together."""
SPANS = 2
"""How many measurements in a row must differ."""
PLACEMENT = ("policy", "engine", "replicas", "devices", "replay", "shards", "learners", "merge")
"""The entries of a configuration that a change of the plan may change."""


class SpeedCheck:
    """Compares the steps per second of the latest stretches with those predicted for a plan."""

    def __init__(self, run: PreparedRun) -> None:
        self._run, self.predicted = run, run.planned.predicted
        self.may_change = run.replan is not None and not run.plan.lags
        """Whether a better plan would help: values that are late or in flight would not be the same under another."""
        self._latest: collections.deque[float] = collections.deque(maxlen=SPANS)
        self._steps: int | None = None
        """The steps of the run before the measurement; None during the first one, which does not count."""
        self._seconds = 0.0
        self._has_spoken = False

    @property
    def measured(self) -> float:
        """Steps per second, as measured last."""
        return sum(self._latest) / len(self._latest)

    def better_plan(self, log: RunLog, seconds: float) -> PlannedRun | None:
        """Count a stretch that took so long. If the speed differs from the prediction, say so once, and while it is too
        slow, ask for a better plan."""
        if self.predicted is None or not self._has_measured(log, seconds) or len(self._latest) < SPANS:
            return None
        is_slow = max(self._latest) < (1 - TOLERANCE) * self.predicted
        if not is_slow and min(self._latest) <= (1 + TOLERANCE) * self.predicted:
            return None
        if not self._has_spoken:
            self._has_spoken = True
            difference = f"{abs(self.measured / self.predicted - 1):.0%} {'below' if is_slow else 'above'}"
            _remark(
                self._run, f"measured {self.measured:,.0f} steps/s, {difference} the predicted {self.predicted:,.0f}"
            )
        replan, has_ended = self._run.replan, self._run.stop or log.iteration >= log.iterations
        if replan is None or not self.may_change or not is_slow or has_ended:
            return None
        return replan(self._run.planned, self.measured)

    def _has_measured(self, log: RunLog, seconds: float) -> bool:
        """Whether the stretch completes a measurement."""
        self._seconds += seconds
        if self._seconds < SPAN_SECONDS:
            return False
        is_first = self._steps is None
        if self._steps is not None:
            self._latest.append(log.steps_since(self._steps) / max(self._seconds, 1e-9))
        self._steps, self._seconds = log.steps, 0.0
        return not is_first


def change_plan(
    run: PreparedRun,
    better: PlannedRun,
    speed: SpeedCheck,
    log: RunLog,
    engine: Engine,
    running: contextlib.ExitStack,
) -> tuple[PreparedRun, Engine, SpeedCheck]:
    """Continue under a better plan, from the state in memory. Where that cannot be, or its engine cannot start, a line
    says why, and everything stays as it is. `running` ends the engine."""
    began, speed.may_change = time.monotonic(), False
    if obstacle := obstacle_to(run, better):
        _remark(run, f"the plan stays: {obstacle}")
        return run, engine, speed
    changed, run.stop.is_compiling = dataclasses.replace(run, planned=better), True
    leaves = jax.block_until_ready(engine.state())
    try:
        episodes = engine.episodes()
        successor = start_engine(changed, log.iterations - log.iteration)
    except Exception as error:
        run.stop.is_compiling = False
        reason = " ".join(str(error).split()) or type(error).__name__
        _remark(run, f"the plan stays, because the engine of another one did not start: {reason}")
        return run, engine, speed
    log.replaced += engine.replaced
    running.close()
    if (pool := run.env.host_pool) and episodes:
        pool.take_over(joined(episodes), better.plan.lanes)
    elif pool:
        pool.divide(better.plan.lanes)
    running.enter_context(successor)
    successor.begin(leaves)
    run.stop.is_compiling = False
    log.changed(changed, _recorded_change(run, better, speed, log, time.monotonic() - began))
    return changed, successor, SpeedCheck(changed)


def obstacle_to(run: PreparedRun, better: PlannedRun) -> str:
    """Why a run cannot continue under a better plan with the same result; empty if it can."""
    request, pool = run.planned.request, run.env.host_pool
    if better.plan.lags:
        return f"distribution policy {better.plan.policy} would train with older values"
    count, lanes, is_apart = run.algorithm.num_envs, better.plan.lanes, run.planned.cluster.apart
    if pool and (better.cluster.apart or (is_apart and not pool.can_take_over(count, lanes))):
        engines = f"engine '{run.planned.engine}' to engine '{better.engine}'"
        return f"the episodes of {request.env_name} cannot move from {engines}"
    if pool and not is_apart and not pool.can_divide(lanes):
        return f"{request.env_name} cannot be stepped by {lanes} replicas without new episodes"
    if better.cluster.apart and not is_apart and jax.default_backend() != "cpu":
        return f"this process keeps the memory of its devices from the processes of engine '{better.engine}'"
    graph = run.plan.graph
    size = sum(graph.state_inputs[i].bytes for i in in_place(graph))
    copies = 3 if request.options.saving.save_replay else 2
    if size and copies * size > (free := free_memory()):
        room = f"{copies * size / 1e9:,.1f} GB of memory, of which {free / 1e9:,.1f} GB are free"
        return f"to move a replay of {size / 1e9:,.1f} GB takes {room}"
    return ""


def _remark(run: PreparedRun, text: str) -> None:
    """Show a line to whoever watches the run."""
    if run.watcher:
        run.watcher.remarked(text)


def _recorded_change(
    run: PreparedRun, better: PlannedRun, speed: SpeedCheck, log: RunLog, seconds: float
) -> dict[str, Any]:
    """Show a change, write it to the run directory, and return its record."""
    before, after = run.planned.config(), better.config()
    differences = {name: [before[name], after[name]] for name in PLACEMENT if before[name] != after[name]}
    change = {"iteration": log.iteration, "steps": log.steps, **differences}
    measured = {"measured": round(speed.measured, 1), "predicted": speed.predicted, "seconds": round(seconds, 3)}
    if run.directory:
        write_plan(better, run.directory)
        record_change(run.directory.path, **change, **measured)
    parts = [f"{_words(name)} {_text(old)} -> {_text(new)}" for name, (old, new) in differences.items()]
    _remark(run, f"after {log.steps:,} steps: {', '.join(parts)}; the change took {seconds:.1f} s")
    return change | measured


def _words(entry: str) -> str:
    return "distribution policy" if entry == "policy" else entry


def _text(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list | tuple) else str(value)
