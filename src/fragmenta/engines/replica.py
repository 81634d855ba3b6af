"""A fragment's replica in a process of its own: compiled, connected to the others, run."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from fragmenta.coordinator.fingerprint import fingerprint
from fragmenta.coordinator.plan import project
from fragmenta.engines.dispatch import Assignment, connections, hold_state, links, ports_of, time_workers
from fragmenta.engines.ends import Ends
from fragmenta.engines.in_flight import InFlight, split_in_flight
from fragmenta.envs import HostEnvironment
from fragmenta.graph import Plan, Program
from fragmenta.tracing.trace import trace
from fragmenta.worker.backends.xla import Site, to_raw
from fragmenta.worker.channels.exchange import Exchange
from fragmenta.worker.channels.memory import ClosedError
from fragmenta.worker.deploy import Deployment, deploy
from fragmenta.worker.execute import Worker
from fragmenta.worker.optimize import optimize
from fragmenta.worker.outcome import Outcome


class Replica:
    """One replica. Its deployment stays; connections and state are made anew whenever the coordinator says so."""

    def __init__(self, job: dict[str, Any], index: int, address: str, token: bytes, cores: int) -> None:
        for name, value in job["jax"].items():
            jax.config.update(name, value)
        self.plan = project(trace(job["algorithm"], job["env"]), job["policy"], job["cluster"], job["merge"])
        self.fingerprint = fingerprint(self.plan, job["algorithm"], job["env"])
        self._env, self._deadline, self._window = job["env"], job["deadline"], job["window"]
        self._program, self._replica = places(self.plan)[index]
        where = _site(self._program, self._replica)
        (own,) = where.devices
        self.device = f"{own.platform}:{jax.local_devices(backend=own.platform).index(own)}"
        replicas = {program.fragment.name: program.replicas for program in self.plan.programs}
        self._deployment: Deployment = deploy(optimize(self._program, replicas, where.unroll), where)
        self._exchange = Exchange(address, token)
        self._ends = Ends(self._exchange)
        self._worker: Worker | None = None
        self._ending = False
        self._between: dict[str, list[Any]] = {}
        self.environments_hold_it_up = False
        """Whether a step of environments may hold up all threads of this process."""
        if hosts_environments(self._program) and isinstance(self._env, HostEnvironment):
            count = job["algorithm"].num_envs // self._program.replicas
            self._env.pool.open_part(self._replica * count, cores)
            self.environments_hold_it_up = self._env.pool.steps_here(count, 1)

    def open(self, wanted: dict[str, bool]) -> dict[str, Any]:
        """Receiving ends of the links of these names; whether memory is shared with the sender. Their addresses."""
        return {link.name: self._ends.open(link, wanted[link.name]) for link in links(self.plan) if link.name in wanted}

    def connecting(self, addresses: dict[str, Any]) -> Callable[[], str | None]:
        """What makes sending ends to these addresses, in any thread; it gives the first link whose other side cannot be
        reached, if there is one. After a `stop` what it makes is nobody's.
        """
        ends, wanted = self._ends, [link for link in links(self.plan) if link.name in addresses]

        def connect() -> str | None:
            for link in wanted:
                try:
                    ends.connect(link, addresses[link.name], self._deadline)
                except (ConnectionError, TimeoutError, ClosedError):
                    return link.name
            return None

        return connect

    def reset(self, seeds: np.ndarray) -> list[np.ndarray]:
        """Start episodes in this replica's environments: who takes part, and the observation's arrays."""
        observation, alive = self._env.pool.reset(seeds)
        return [alive, *observation]

    def load(self, leaves: dict[int, np.ndarray], in_flight: InFlight) -> None:
        """Begin from this state and with this on its way, with the connections that there are."""
        name = self._program.fragment.name
        ports = ports_of(self.plan, name, self._replica, self._ends.channel, self._ends.mailbox)
        state = hold_state(self._program, self._deployment, leaves)
        mine = Assignment(self._deployment, self._replica, ports, state)
        self._between = connections([mine])
        # Nobody in this process could say when others record: one that runs freely goes by its own iterations.
        window = self._window and dataclasses.replace(self._window, own=True)
        (stopwatch,) = time_workers(self.plan, [mine], window) if window else [None]
        self._worker = Worker(self._deployment, self._replica, ports, state, self._deadline, stopwatch)
        if name in self.plan.free_running:
            self._worker.copy_state()
        if in_flight:
            self._worker.restore(split_in_flight(self.plan, in_flight, self._worker))
        self._ending = False

    def run(self, iterations: int) -> Iterator[tuple[dict[str, Any], list[np.ndarray]]]:
        """Train; after every iteration, a report and its metrics."""
        worker = self._working
        while iterations:
            outcomes = worker.iterate(iterations)
            iterations -= len(outcomes)
            for outcome in outcomes:
                yield self._report(worker, outcome), [np.asarray(value) for value in outcome.metrics.values()]

    def run_freely(self) -> None:
        """Train at a pace of its own until `end`."""
        while not self._ending:
            self._working.iterate(1)
            self._working.copy_state()

    def state(self) -> dict[int, np.ndarray]:
        """The leaves that it keeps; while it runs freely, those after its last iteration."""
        worker = self._working
        leaves = worker.copied or worker.state()
        return {i: np.asarray(to_raw(leaf)) for i, leaf in leaves.items()}

    def in_flight(self) -> dict[tuple[int, str], list[Any]]:
        """What it holds that it will take one iteration late."""
        return self._working.in_flight()

    @property
    def env_restarts(self) -> int:
        """How many of its environments were started anew."""
        return self._env.pool.restarted if isinstance(self._env, HostEnvironment) else 0

    def timeline(self) -> Any:
        """What it recorded, as lists; None if there was nothing to record."""
        stopwatch = self._worker.stopwatch if self._worker else None
        return stopwatch.timeline().as_lists() if stopwatch else None

    def doing(self) -> str:
        """In words, what it does right now."""
        return self._worker.doing() if self._worker else "is ready"

    def cause(self, error: BaseException) -> BaseException:
        """The fault of an environment behind an error, if there is one."""
        failure = self._env.pool.failure if isinstance(self._env, HostEnvironment) else None
        return failure or error

    def end(self) -> None:
        """Let it end after the iteration that it is in."""
        self._ending = True
        self._ends.end()

    def stop(self) -> None:
        """Wake whatever waits, let it end before the next step of its environments, and forget all connections."""
        self._ending = True
        if self._worker is not None:
            self._worker.stop()
        self._ends.close()
        self._ends = Ends(self._exchange)

    def close(self) -> None:
        """End everything."""
        self.stop()
        self._exchange.close()
        if isinstance(self._env, HostEnvironment):
            self._env.pool.close()

    @property
    def _working(self) -> Worker:
        assert self._worker is not None, "it was given no state"
        return self._worker

    def _report(self, worker: Worker, outcome: Outcome) -> dict[str, Any]:
        fill = {pair: max(channel.fill() for channel in channels) for pair, channels in self._between.items()}
        return {
            "metrics": list(outcome.metrics),
            "lag": outcome.lag,
            "source": outcome.source,
            "dropped": outcome.dropped,
            "busy": worker.times.share,
            "fill": fill,
        }


def places(plan: Plan) -> list[tuple[Program, int]]:
    """The processes of a plan, in order: the program and the replica of each."""
    return [(program, replica) for program in plan.programs for replica in range(program.replicas)]


def names(plan: Plan) -> list[str]:
    """The names of the processes of a plan, in order."""
    return [program.worker(replica) for program, replica in places(plan)]


def resources(plan: Plan) -> list[dict[str, float]]:
    """What each process takes of a cluster: its device, or an equal share of it with others on the same one."""
    devices = [program.fragment.devices[replica] for program, replica in places(plan)]
    share = [1 / devices.count(device) for device in devices]
    return [
        {"CPU": part} if device.startswith("cpu") else {"CPU": part, "GPU": part}
        for device, part in zip(devices, share, strict=True)
    ]


def hosts_environments(program: Program) -> bool:
    """Whether environments on the host are stepped in it."""
    return bool(set(program.fragment.stages) & set(program.graph.host_stages))


def _site(program: Program, replica: int) -> Site:
    """One device of this process, and those of the replicas that it meets."""

    def device(process: int) -> Any:
        kind, _, number = program.fragment.devices[process if program.replicas > 1 else 0].partition(":")
        member = process if program.together and program.replicas > 1 else jax.process_index()
        own = [d for d in jax.devices(kind) if d.process_index == member]
        return own[int(number) % len(own)]

    own = (device(replica),)
    if not program.together or program.replicas == 1:
        return Site(own)
    return Site(own, 1, program.fragment.axis or "", tuple(device(i) for i in range(program.replicas)))
