"""Engines by name: how each is started, and which devices it places fragments on."""

import dataclasses
import os
import sys
from collections.abc import Callable

import jax

from fragmenta.engines.base import Engine, EngineOptions, Setup
from fragmenta.engines.cluster import ClusterEngine
from fragmenta.engines.hardware import local_cluster
from fragmenta.engines.local import LocalEngine
from fragmenta.engines.processes import ProcessLauncher
from fragmenta.engines.ray import RayLauncher
from fragmenta.engines.ray_access import slots
from fragmenta.engines.replica import names, resources
from fragmenta.errors import ConfigError, unknown
from fragmenta.policies import Cluster
from fragmenta_host.options import cores


@dataclasses.dataclass(frozen=True)
class EngineKind:
    """A selectable engine; call it with a setup to start one."""

    start: Callable[[Setup], Engine]
    apart: bool = True
    """Whether every worker runs in a separate process."""
    cluster_slots: Callable[[EngineOptions], tuple[str, int] | None] = lambda _: None
    """The kind and number of devices of an existing cluster; None to use this machine."""

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
    engine = LocalEngine(setup.plan, setup.deadline, setup.window)
    engine.env = setup.env
    return engine


def _processes(setup: Setup) -> Engine:
    return ClusterEngine(setup, ProcessLauncher(setup.logs, names=names(setup.plan)))


def _ray(setup: Setup) -> Engine:
    options = setup.options
    strategy = "SPREAD" if options.placement == "spread" else "PACK"
    launcher = RayLauncher(resources(setup.plan), options.address, strategy, setup.logs, names=names(setup.plan))
    if url := launcher.dashboard_url():
        print(f"fragmenta: Ray's dashboard is at {url}", file=sys.stderr)
    return ClusterEngine(setup, launcher)


def _ray_slots(options: EngineOptions) -> tuple[str, int] | None:
    if not options.address:
        return None
    nodes = slots(options.address)
    kind = "gpu" if any(node.gpus for node in nodes) else "cpu"
    return kind, int(sum(node.gpus if kind == "gpu" else node.cpus for node in nodes))


ENGINES: dict[str, EngineKind] = {
    "local": EngineKind(_local, apart=False),
    "processes": EngineKind(_processes),
    "ray": EngineKind(_ray, cluster_slots=_ray_slots),
}


def engine_named(name: str) -> EngineKind:
    """The engine of that name; ConfigError if there is none."""
    if name not in ENGINES:
        raise unknown("engine", name, ENGINES)
    return ENGINES[name]
