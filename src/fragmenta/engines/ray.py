"""Runs processes on a Ray cluster: Ray places, starts, monitors and terminates them; data does not go through Ray."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from threading import RLock, Thread
from typing import Any, Literal

from fragmenta.engines import ray_access
from fragmenta.engines.launcher import SERVE
from fragmenta.errors import ConfigError
from fragmenta_launch.children import Children, OutputPrinter
from fragmenta_launch.reaper import reap_after_us

PLACING_SECONDS = 60.0
"""How long a process may wait to be placed: Ray must detect that a node died, and find room elsewhere."""

NODE_GONE = "was lost with its node"

MOST_LINES = 10_000
"""Maximum number of unread output lines on a node."""
KILLING_SECONDS = 1.0
"""How long to wait until all actors have killed their processes."""
LISTENING_SECONDS = 0.5
"""How often the reader of the output checks whether the launcher was closed."""


@dataclass(frozen=True)
class Place:
    """Where a process runs: the node of the cluster, the machine's address, its process id."""

    node: str
    address: str
    pid: int


class RayLauncher:
    """Starts one process per Ray resource bundle, on a cluster at `address` or on a new Ray on this machine.

    Each process is the child of a Ray actor in a bundle of one placement group. Its output goes to standard error here
    and to a file per process in `logs`, whichever machine it runs on.
    """

    def __init__(
        self,
        needs: Sequence[dict[str, float]],
        address: str | None = None,
        strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK",
        logs: Path | None = None,
        serve: str = SERVE,
        placing_seconds: float = PLACING_SECONDS,
        names: Sequence[str] = (),
    ) -> None:
        self._resources, self._serve, self._patience = list(needs), serve, placing_seconds
        self._show = OutputPrinter(logs, names)
        self._actors: dict[int, Any] = {}
        self._places: dict[int, Any] = {}
        self._exits: dict[int, Any] = {}
        self._orders: dict[int, tuple[bytes, tuple[str, int], bytes]] = {}
        self._since: dict[int, float] = {}
        self._listeners: list[Thread] = []
        # Using Ray after its shutdown terminates the whole process, so methods that other threads call take this lock.
        self._lock, self._closed = RLock(), False
        self._ray = ray_access.connect(address, cpus=_sum(needs, "CPU"))
        self._reaper = reap_after_us() if address is None else None
        self._code = ray_access.code(self._ray)
        self.address: str = self._ray.util.get_node_ip_address()
        self._group = self._ray.util.placement_group(self._resources, strategy=strategy)
        if not self._group.wait(placing_seconds):
            capacity = "; ".join(f"{s.address}: {s.cpus:g} CPUs, {s.gpus:g} GPUs" for s in ray_access.nodes(self._ray))
            self.close()
            raise ConfigError(
                f"the Ray cluster has no room for {len(needs)} processes with {_sum(needs, 'CPU'):g} CPUs and "
                f"{_sum(needs, 'GPU'):g} GPUs in total ({strategy}; it has {capacity}): use fewer replicas, add nodes"
            )

    def start(self, index: int, job: bytes, coordinator: tuple[str, int], token: bytes) -> None:
        """Start process `index` and return at once; the same index again replaces a lost process.

        It runs where the lost one ran if that node is alive, else where Ray moves the bundle.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("the launcher was closed")
            self._orders[index] = job, coordinator, token
            self._since[index] = time.monotonic()
            self._order(index)

    def ended(self, index: int) -> str | None:
        """How process `index` ended, as text; None while it starts or runs."""
        with self._lock:
            return "was terminated" if self._closed else self._ended(index)

    def _ended(self, index: int) -> str | None:
        in_time = time.monotonic() - self._since[index] < self._patience
        if self._is_done(self._exits[index]):
            how = self._exit_text(index)
            if self.place(index) is None and how.startswith(NODE_GONE) and in_time:
                self._order(index)  # Ray placed it on a dead node, before it noticed
                return None
            return how
        if not in_time and not self._is_done(self._places[index]):
            resources = self._resources[index]
            return f"could not be placed within {self._patience:g} s: the cluster has no room for {resources}"
        return None

    def place(self, index: int) -> Place | None:
        """Where process `index` runs, or None if it is not placed."""
        if not self._is_done(self._places[index]):
            return None
        try:
            return Place(*self._ray.get(self._places[index]))
        except self._ray.exceptions.RayError:
            return None

    def kill(self, index: int) -> None:
        """Kill process `index` now, even if it is stopped."""
        with self._lock:
            if index in self._actors and not self._closed:
                self._actors[index].kill.remote(index)

    def dashboard_url(self) -> str | None:
        """The URL of Ray's dashboard, if the cluster runs one."""
        url = self._ray._private.worker.get_dashboard_url()
        return f"http://{url}" if url else None

    def close(self) -> None:
        """Terminate all processes, leave the cluster, and stop Ray if it was started here."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._show.hush()
        # With a process goes its group: what its environments have started. An actor that is out of reach is not
        # waited for; where it runs, the kernel kills the process with it.
        killed = [actor.kill.remote(index) for index, actor in self._actors.items()]
        if killed:
            self._ray.wait(killed, num_returns=len(killed), timeout=KILLING_SECONDS)
        for actor in self._actors.values():
            self._ray.kill(actor)
        for listener in self._listeners:
            listener.join()
        self._ray.util.remove_placement_group(self._group)
        ray_access.leave(self._ray)
        if self._reaper:
            self._reaper.communicate()

    def _order(self, index: int) -> None:
        job, coordinator, token = self._orders[index]
        if index in self._actors and self._unreachable(index):
            self._ray.kill(self._actors.pop(index))  # its node may come back, and the process too
        if index not in self._actors:
            self._actors[index] = self._new_actor(index)
        actor = self._actors[index]
        self._places[index] = actor.start.remote(index, job, coordinator, token)
        self._exits[index] = actor.wait.remote(index, self._places[index])

    def _new_actor(self, index: int) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        actor = (
            _actor_class(self._ray)
            .options(
                num_cpus=self._resources[index].get("CPU", 0),
                num_gpus=self._resources[index].get("GPU", 0),
                max_restarts=0,
                max_concurrency=4,  # one call waits for the exit, one for output; others kill and restart
                runtime_env=self._code,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index),
            )
            .remote(self._serve)
        )
        listener = Thread(target=self._listen, args=(index, actor), name="fragmenta-output", daemon=True)
        listener.start()
        self._listeners = [*(thread for thread in self._listeners if thread.is_alive()), listener]
        return actor

    def _listen(self, index: int, actor: Any) -> None:
        """Print the output of the process, as long as its actor is alive."""
        answer = actor.output.remote()
        while not self._closed:
            # An actor on an unreachable machine may answer late or never, even after it was killed.
            try:
                lines = self._ray.get(answer, timeout=LISTENING_SECONDS)
            except self._ray.exceptions.GetTimeoutError:
                continue
            except self._ray.exceptions.RayError:
                return
            for line in lines:
                self._show(index, line)
            answer = actor.output.remote()

    def _is_done(self, answer: Any) -> bool:
        return bool(self._ray.wait([answer], timeout=0, fetch_local=False)[0])

    def _unreachable(self, index: int) -> bool:
        """Whether the actor of process `index` is dead or unreachable: a live actor reports how its process ended."""
        try:
            if self._is_done(self._exits[index]):
                self._ray.get(self._exits[index])
        except self._ray.exceptions.RayError:
            return True
        return False

    def _exit_text(self, index: int) -> str:
        errors = self._ray.exceptions
        try:
            return self._ray.get(self._exits[index])
        except errors.ActorUnavailableError:
            return NODE_GONE + ", or its node is unreachable"
        except errors.ActorDiedError as error:
            return NODE_GONE if "its node" in str(error) else "was lost with its Ray actor"
        except errors.RayError as error:
            return "could not be started: " + str(error).strip().splitlines()[-1]


def _actor_class(ray: Any) -> Any:
    """The class of the Ray actor that owns one process. It is pickled by value, so that Ray's workers load no JAX."""

    class ProcessOwner:
        def __init__(self, serve: str) -> None:
            self._lines: Queue[bytes] = Queue(MOST_LINES)  # a process that prints faster than we read is blocked
            self._children = Children(serve, lambda index, line: self._lines.put(line))

        def start(self, index: int, job: bytes, coordinator: tuple[str, int], token: bytes) -> tuple[str, str, int]:
            import os

            import ray

            os.environ["FRAGMENTA_NODE"] = ray.get_runtime_context().get_node_id()
            self._children.start(index, job, coordinator, token)
            return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), self._children.pid(index)

        def wait(self, index: int, started: object) -> str:
            return self._children.wait(index)

        def kill(self, index: int) -> None:
            self._children.kill(index)

        def output(self) -> list[bytes]:
            first = self._lines.get()
            return [first, *(self._lines.get() for _ in range(self._lines.qsize()))]

    return ray.remote(ProcessOwner)


def _sum(needs: Sequence[dict[str, float]], kind: str) -> float:
    return sum(need.get(kind, 0) for need in needs)
