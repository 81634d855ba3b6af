"""The loop around an engine: runs stretches of iterations; between them, saves checkpoints, checks for a stop, and
changes the plan if it is slower than predicted."""

import contextlib
import dataclasses
import signal
import time
from typing import Any

import jax
import numpy as np

from fragmenta.command import command
from fragmenta.engines import Engine
from fragmenta.runs.checkpoints import Checkpoint
from fragmenta.runs.run_directory import StoredRecords, sha256
from fragmenta.runs.seeds import Seeds
from fragmenta.runs.timeline_files import write_timeline
from fragmenta.training.blame import first_bad_stage, is_finite
from fragmenta.training.log import RunLog
from fragmenta.training.prepared import PreparedRun, start_engine
from fragmenta.training.replanning import SpeedCheck, change_plan
from fragmenta.training.result import Result
from fragmenta.training.seeds import SeedTally, seed_summaries
from fragmenta.training.start import Start
from fragmenta.training.stopping import NotFiniteError, StoppedError


def run_loop(run: PreparedRun, start: Start) -> Result:
    """Train until the end, a stop request or a failure; the last good state is saved in every case."""
    compiling = time.monotonic()
    engine = start_engine(run, run.iterations_after(start.steps))
    # Those of the engine may be in other processes, and move to those of the run under another plan.
    environments = run.env.opened(run.plan.lanes), engine.env.opened(run.plan.lanes)
    with environments[0], environments[1], contextlib.ExitStack() as running:
        running.enter_context(engine)
        state, last_good = start.state(engine.env)
        leaves, structure = jax.tree.flatten(state)
        engine.begin(leaves, last_good.in_flight)
        del state, leaves  # the engine has its own copy
        run.stop.is_compiling = False
        log = RunLog(run, start, last_good, time.monotonic() - compiling)
        speed = SpeedCheck(run)
        try:
            while log.iteration < log.iterations and not run.stop:
                seconds = _run_stretch(run, start, log, engine)
                log.call("on_iteration", engine, structure)
                log.commit()
                if run.saver and log.is_time_to_save(only_if_due=start.copies_are_large):
                    _keep_state(run, start, log, engine, structure)
                    log.call_about_files(engine, structure)
                if better := speed.better_plan(log, seconds):
                    run, engine, speed = change_plan(run, better, speed, log, engine, running)
            if run.saver and log.last_good.iteration < log.iteration:  # it was stopped since the state was kept
                _keep_state(run, start, log, engine, structure)
            engine.finish()
        finally:
            log.commit()
            # Else it is on disk.
            if run.saver and (start.checkpoint is None or log.last_good.iteration > start.iteration):
                run.saver.save(log.last_good)
        state = jax.tree.unflatten(structure, engine.state(start.left_behind))
        jax.block_until_ready(state)
        log.end()
        if run.evaluation and run.stop.signal is None:
            run.evaluation.finish(log.last_good, run.algorithm.params(state))
        if run.saver:
            run.saver.close()
        log.call_about_files(engine, structure)
        timelines, replaced = engine.timelines(), log.replaced + engine.replaced
    if run.directory and run.planned.request.options.timeline:
        write_timeline(run.directory.path, timelines)
    result = _result(run, start, log, state)
    return dataclasses.replace(result, summary=result.summary | {"replaced": replaced}) if replaced else result


def _run_stretch(run: PreparedRun, start: Start, log: RunLog, engine: Engine) -> float:
    """Train until the next check; returns how many seconds that took."""
    began = time.monotonic()
    for report in engine.run(log.stretch()):
        log.add(report)
        if not run.callbacks.each_iteration:
            log.commit()
        if not is_finite([np.asarray(value) for value in log.losses.values()]):
            raise _not_finite(run, start, log)
    return time.monotonic() - began


def _keep_state(run: PreparedRun, start: Start, log: RunLog, engine: Engine, structure: Any) -> None:
    """Make the present state the last good one; evaluate and save it if that is due."""
    assert run.saver is not None
    with log.copying():
        leaves = engine.state(start.unsaved)
        state = jax.tree.unflatten(structure, jax.block_until_ready(leaves))
        arrays = start.saved(state)
    if not is_finite(run.algorithm.params(state)):
        raise _not_finite(run, start, log)
    log.last_good = Checkpoint(arrays, log.iteration, log.steps, in_flight=engine.in_flight())
    if run.evaluation:
        run.evaluation.consider(log.last_good, run.algorithm.params(state))
    else:
        run.saver.consider(log.last_good, log.tally.return_mean)
    if run.saver.due(log.iteration):
        run.saver.save(log.last_good)


def _result(run: PreparedRun, start: Start, log: RunLog, state: Any) -> Result:
    params = run.algorithm.params(state)
    summary = {
        **run.planned.identity(),
        "total_steps": log.steps,
        "iterations": log.iteration,
        "steps_per_second": round(log.rate, 1),
        "compile_seconds": round(log.compile_seconds, 3),
        "wall_seconds": round(time.monotonic() - run.started, 3),
        "return_mean": log.tally.return_mean,
        "ended": run.stop.reason or "completed",
        "params_sha256": sha256(params),
    }
    summary |= {f"resumed_{field}": how for field, how in start.resumption.items()}
    if log.changes:
        summary["changes"] = log.changes
    if run.env.restarts:
        summary["env_restarts"] = run.env.restarts
    if log.lags:
        summary |= {"lag_mean": round(log.lag_total / log.lags, 3), "lag_max": log.lag_most}
        summary["dropped"] = log.dropped
    if run.stop.signal is not None and log.iteration < log.iterations:
        assert run.directory is not None
        name, path = signal.Signals(run.stop.signal).name, run.directory.path
        saved = f"saved after {log.steps:,} of {run.algorithm.total_steps:,} steps"
        raise StoppedError(run.stop.signal, f"{name}: {saved}; continue with: {command('resume', path)}")
    if isinstance(run.algorithm, Seeds) and isinstance(log.tally, SeedTally):
        summary["per_seed"] = seed_summaries(run.algorithm, params, log.tally)
    records = StoredRecords(run.directory.path / "metrics.jsonl", log.began) if run.directory else log.records
    return Result(params, state, records, summary, run.algorithm, run.env)


def _not_finite(run: PreparedRun, start: Start, log: RunLog) -> NotFiniteError:
    """The error for non-finite values: the stage that produced them, what is saved, how to continue."""
    wrong = [n for n, value in log.losses.items() if not is_finite([np.asarray(value)])] or ["parameters"]
    stage, last_good = None, log.last_good
    if run.env.is_replayable:  # others have moved on and cannot repeat it
        state = start.restored(run.env, last_good)
        stage = first_bad_stage(run.algorithm, run.env, run.plan.graph, state, log.iteration - last_good.iteration)
    cause = f"stage '{stage}' produced NaN or Inf from finite inputs" if stage else "NaN or Inf appeared"
    description = f"{cause} in iteration {log.iteration - 1} ({', '.join(wrong)})"
    if run.saver is None or run.directory is None:
        return NotFiniteError(f"{description}: try a smaller learning rate")
    saved = f"the state after iteration {last_good.iteration} is saved"
    path = run.directory.path
    smaller = f"for a smaller learning rate, call fragmenta.resume('{path}', algorithm=...) in Python"
    return NotFiniteError(f"{description}; {saved}: continue with {command('resume', path)}; {smaller}")
