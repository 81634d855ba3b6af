"""Run a few iterations of an existing run again, as configured, to see where its time goes."""

import dataclasses

import jax

from fragmenta.coordinator.plan import project
from fragmenta.engines import ENGINES, EngineOptions, Setup
from fragmenta.engines.hardware import keep_compiled_programs
from fragmenta.engines.in_place import in_place
from fragmenta.engines.initial import initial_state
from fragmenta.graph import Plan
from fragmenta.profiling.timeline import Window
from fragmenta.profiling.timings import Timings
from fragmenta.runs.opening import Run, cluster_of
from fragmenta.runs.timeline_files import write_timeline
from fragmenta.tracing.trace import trace


def plan_of(run: Run) -> Plan:
    """The plan of a run."""
    return project(trace(run.trained, run.env), run.config["policy"], cluster_of(run), run.config["merge"])


def retrace(run: Run, plan: Plan, iterations: int) -> Timings:
    """Record `iterations` iterations of a run after a short warm-up, and write the timeline to its directory."""
    keep_compiled_programs()
    config = run.config
    window = Window(first=min(Window.first, iterations))
    window.last = window.first + iterations
    cluster, options = cluster_of(run), EngineOptions(**config["engine_options"])
    setup = Setup(plan, run.trained, run.env, config["policy"], cluster, config["merge"], config["seed"])
    setup = dataclasses.replace(setup, deadline=config["deadline"], window=window, options=options)
    engine = ENGINES[config["engine"]](setup)
    with engine.env.opened(plan.lanes), engine:
        key = jax.random.key(config["seed"])
        engine.begin(jax.tree.leaves(initial_state(run.trained, engine.env, key, cluster.replay, in_place(plan.graph))))
        for report in engine.run(window.last):
            jax.device_get(report.metrics)  # as training does
        return write_timeline(run.path, engine.timelines())
