"""Engines by name: how each is started, and which devices it places fragments on."""

import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import jax

from fragmenta.engines.base import Engine, EngineOptions, Setup
from fragmenta.engines.cluster import ClusterEngine
from fragmenta.engines.hardware import local_cluster
from fragmenta.engines.launcher import SERVE, Launcher
from fragmenta.engines.local import LocalEngine
from fragmenta.engines.processes import ProcessLauncher
from fragmenta.engines.ray import RayLauncher
from fragmenta.engines.ray_access import slots
from fragmenta.engines.replica import names, resources
from fragmenta.errors import ConfigError, unknown
from fragmenta.policies import Cluster
from fragmenta_host.options import cores


@dataclasses.dataclass(frozen=True)
class Launch:
    """Processes to be started: their names, the resources of each, the function that each runs, where output goes."""

    names: Sequence[str]
    needs: Sequence[dict[str, float]]
    serve: str = SERVE
    logs: Path | None = None


@dataclasses.dataclass(frozen=True)
class EngineKind:
    """A selectable engine; call it with a setup to start one."""

    start: Callable[[Setup], Engine]
    launcher: Callable[[Launch, EngineOptions], Launcher] | None = None
    """Creates the launcher of its processes; None if every worker is a thread of this process."""
    cluster_slots: Callable[[EngineOptions], tuple[str, int] | None] = lambda _: None
    """The kind and number of devices of an existing cluster; None to use this machine."""

    @property
    def apart(self) -> bool:
        """Whether every worker runs in a separate process."""
        return self.launcher is not None

    def __call__(self, setup: Setup) -> Engine:
        """Start an engine for a plan."""
        return self.start(setup)

    def cluster(
        self,
        options: EngineOptions,
        replicas: int = 0,
        lag: int = 0,
        max_lag: int | None = None,
        processes: int | None = None,
    ) -> Cluster:
        """The devices to place fragments on: those of this process, or one process per core or GPU of the machine or
        cluster; `processes` overrides their number."""
        if not self.apart:
            return local_cluster(replicas, lag, max_lag)
        if processes is not None and processes < 1:
            raise ConfigError(f"cpu_devices is {processes}: it must be at least 1")
        # Several processes may share a GPU, and by default each would reserve three quarters of its memory.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        kind, count = jax.default_backend(), len(jax.devices())
        if elsewhere := self.cluster_slots(options):
            kind, count = elsewhere
        elif kind == "cpu":
            count = cores()
        if processes is not None:
            kind, count = "cpu", processes
        return Cluster(tuple(f"{kind}:{i}" for i in range(count)), replicas, lag, max_lag, apart=True)


def _local(setup: Setup) -> Engine:
    engine = LocalEngine(setup.plan, setup.deadline, setup.window, (setup.algorithm, setup.env))
    engine.env = setup.env
    return engine


def _apart(launcher: Callable[[Launch, EngineOptions], Launcher]) -> Callable[[Setup], Engine]:
    def start(setup: Setup) -> Engine:
        launch = Launch(names(setup.plan), resources(setup.plan), logs=setup.logs)
        return ClusterEngine(setup, launcher(launch, setup.options))

    return start


def _subprocesses(launch: Launch, _: EngineOptions) -> Launcher:
    return ProcessLauncher(launch.logs, launch.serve, launch.names)


def _on_ray(launch: Launch, options: EngineOptions) -> Launcher:
    strategy = "SPREAD" if options.placement == "spread" else "PACK"
    launcher = RayLauncher(launch.needs, options.address, strategy, launch.logs, launch.serve, names=launch.names)
    if url := launcher.dashboard_url():
        print(f"fragmenta: Ray's dashboard is at {url}", file=sys.stderr)
    return launcher


def _ray_slots(options: EngineOptions) -> tuple[str, int] | None:
    if not options.address:
        return None
    nodes = slots(options.address)
    kind = "gpu" if any(node.gpus for node in nodes) else "cpu"
    return kind, int(sum(node.gpus if kind == "gpu" else node.cpus for node in nodes))


ENGINES: dict[str, EngineKind] = {
    "local": EngineKind(_local),
    "processes": EngineKind(_apart(_subprocesses), _subprocesses),
    "ray": EngineKind(_apart(_on_ray), _on_ray, _ray_slots),
}


def engine_named(name: str) -> EngineKind:
    """The engine of that name; ConfigError if there is none."""
    if name not in ENGINES:
        raise unknown("engine", name, ENGINES)
    return ENGINES[name]
