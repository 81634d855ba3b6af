"""Engines by name: what starts the workers of a plan and connects them."""

import sys
from collections.abc import Callable

from fragmenta.engines.base import Engine, EngineOptions, Placed, Report, Setup
from fragmenta.engines.cluster import ClusterEngine
from fragmenta.engines.local import LocalEngine
from fragmenta.engines.processes import ProcessLauncher
from fragmenta.engines.ray import RayLauncher
from fragmenta.engines.replica import names, resources


def _local(setup: Setup) -> Engine:
    engine = LocalEngine(setup.plan, setup.deadline, setup.window)
    engine.env = setup.env
    return engine


def _processes(setup: Setup) -> Engine:
    return ClusterEngine(setup, ProcessLauncher(setup.logs, names=names(setup.plan)))


def _ray(setup: Setup) -> Engine:
    options = setup.options
    strategy = "SPREAD" if options.placement == "spread" else "PACK"
    named = names(setup.plan)
    launcher = RayLauncher(resources(setup.plan), options.address, strategy, setup.logs, names=named)
    if url := launcher.dashboard_url():
        print(f"fragmenta: Ray's dashboard is at {url}", file=sys.stderr)
    return ClusterEngine(setup, launcher)


ENGINES: dict[str, Callable[[Setup], Engine]] = {"local": _local, "processes": _processes, "ray": _ray}

__all__ = ["ENGINES", "Engine", "EngineOptions", "LocalEngine", "Placed", "Report", "Setup"]
