"""`fragmenta graph`: show the graph under a policy; for a run, with measured times and bytes."""

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

from fragmenta.cli.arguments import ClusterOptions, EnvFlags, PolicyName, read, read_options
from fragmenta.coordinator.plan import project
from fragmenta.envs import make
from fragmenta.errors import ConfigError
from fragmenta.graph import Plan
from fragmenta.graph.show import show_plan, to_dot, to_mermaid
from fragmenta.profiling.timings import Timings
from fragmenta.runs.opening import load
from fragmenta.runs.timeline_files import read_timings
from fragmenta.tracing.trace import trace
from fragmenta.training.retrace import plan_of

Format = Literal["text", "mermaid", "svg"]


@dataclasses.dataclass(frozen=True)
class DrawingOptions:
    """How to show the graph; for a run, instead of ALGORITHM ENVIRONMENT: `fragmenta graph RUN`."""

    format: Format = "text"
    """A listing, a Mermaid flowchart, or an SVG drawing through graphviz."""


@dataclasses.dataclass(frozen=True)
class PlacementOptions(ClusterOptions):
    """Where the fragments run."""

    policy: PolicyName = "single_learner_coarse"
    """Which part of the loop runs where."""
    merge: bool = False
    """Merge fragments and replicas that share a device, as training does."""


@dataclasses.dataclass(frozen=True)
class GraphOptions:
    """All flags of `fragmenta graph ALGORITHM ENVIRONMENT` but for the hyper-parameters, in the order of the help."""

    drawing: DrawingOptions
    placement: PlacementOptions
    environment: EnvFlags


def run(arguments: list[str]) -> int:
    """Print the graph and the programs of its fragments; for a run directory, with measurements."""
    if arguments and (os.sep in arguments[0] or Path(arguments[0]).is_dir()):
        name, run_options = read_options("graph", "RUN", DrawingOptions, arguments)
        _check(run_options.format)
        run = load(Path(name))
        timings = read_timings(Path(name))
        _show(plan_of(run), run_options.format, timings)
        return 0
    algorithm, env, options = read("graph", GraphOptions, arguments)
    placement, drawing = options.placement, options.drawing
    cluster = placement.cluster()  # before the first array, which would fix the number of devices
    cluster = dataclasses.replace(cluster, replicas=cluster.replicas or 1)
    environment = make(env, options.environment)
    algorithm.validate(environment)
    _check(drawing.format)
    _show(project(trace(algorithm, environment), placement.policy, cluster, placement.merge), drawing.format)
    return 0


def _check(format: Format) -> None:
    if format == "svg" and shutil.which("dot") is None:
        raise ConfigError("format svg needs graphviz' dot, which is not installed: install graphviz, or use mermaid")


def _show(plan: Plan, format: Format, timings: Timings | None = None) -> None:
    if format == "mermaid":
        sys.stdout.write(to_mermaid(plan, timings))
    elif format == "svg":
        dot = to_dot(plan, timings)
        drawing = subprocess.run(["dot", "-Tsvg"], input=dot, capture_output=True, text=True, check=True)
        sys.stdout.write(drawing.stdout)
    else:
        print(plan.graph, show_plan(plan, timings), sep="\n\n")
