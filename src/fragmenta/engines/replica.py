"""Compiles, connects and runs one replica of a fragment in a separate process."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from fragmenta.coordinator.fingerprint import fingerprint
from fragmenta.coordinator.plan import project
from fragmenta.engines.dispatch import Assignment, connections, ports_of, routes, time_workers
from fragmenta.engines.ends import Ends
from fragmenta.engines.holding import empty_part, hold_state
from fragmenta.engines.in_flight import InFlight, split_in_flight
from fragmenta.engines.job import use_jax_settings
from fragmenta.graph import Plan, Program
from fragmenta.tracing.trace import abstract_state, trace
from fragmenta.worker.backends.xla import Site, to_raw
from fragmenta.worker.channels.exchange import PipeExchange
from fragmenta.worker.channels.memory import ClosedError
from fragmenta.worker.deploy import Deployment, deploy
from fragmenta.worker.execute import Worker
from fragmenta.worker.optimize import optimize
from fragmenta.worker.outcome import Outcome
from fragmenta_host.episodes import Episodes


class ReplicaProcess:
    """One replica. It is compiled once; the coordinator may replace its connections and state at any time."""

    def __init__(self, job: dict[str, Any], index: int, address: str, token: bytes, cores: int) -> None:
        use_jax_settings(job["jax"])
        self.plan = project(trace(job["algorithm"], job["env"]), job["policy"], job["cluster"], job["merge"])
        self.fingerprint = fingerprint(self.plan, job["algorithm"], job["env"])
        self._algorithm, self._env = job["algorithm"], job["env"]
        self._deadline, self._window = job["deadline"], job["window"]
        self._program, self._replica = places(self.plan)[index]
        where = _site(self._program, self._replica)
        (device,) = where.devices
        self.device = f"{device.platform}:{jax.local_devices(backend=device.platform).index(device)}"
        replicas = {program.fragment.name: program.replicas for program in self.plan.programs}
        self._deployment: Deployment = deploy(optimize(self._program, replicas, where.unroll), where)
        self._exchange = PipeExchange(address, token)
        self._ends = Ends(self._exchange)
        self._worker: Worker | None = None
        self._ending = False
        self._between: dict[str, list[Any]] = {}
        self.env_steps_block = False
        """Whether an environment step may block all threads of this process."""
        if (pool := self._env.host_pool) and hosts_environments(self._program):
            count = job["algorithm"].num_envs // self._program.replicas
            pool.open_part(self._replica * count, cores)
            self.env_steps_block = pool.steps_here(count, 1)

    def open(self, shares_memory: dict[str, bool]) -> dict[str, Any]:
        """Create the receiving ends of these routes, by name whether the sender shares memory; their addresses."""
        chosen_routes = [route for route in routes(self.plan) if route.name in shares_memory]
        return {route.name: self._ends.open(route, shares_memory[route.name]) for route in chosen_routes}

    def connecting(self, addresses: dict[str, Any]) -> Callable[[], str | None]:
        """A function that creates the sending ends to these addresses, in any thread, and returns the first route whose
        receiver cannot be reached, if any. After a `stop`, its connections are not used.
        """
        ends, chosen_routes = self._ends, [route for route in routes(self.plan) if route.name in addresses]

        def connect() -> str | None:
            for route in chosen_routes:
                try:
                    ends.connect(route, addresses[route.name], self._deadline)
                except (ConnectionError, TimeoutError, ClosedError):
                    return route.name
            return None

        return connect

    def reset(self, seeds: np.ndarray) -> list[np.ndarray]:
        """Start episodes in this replica's environments; returns which agents take part, and the observations."""
        observation, alive = self._env.pool.reset(seeds)
        return [alive, *observation]

    def episodes(self) -> Episodes:
        """This replica's environments, in the middle of their episodes."""
        return self._env.pool.episodes()

    def held(self, leaves: Sequence[int]) -> bool:
        """Whether this replica still has its part of these leaves, of this iteration or a later one."""
        return self._worker is not None and self._worker.held(leaves) is not None

    def load(
        self,
        leaves: dict[int, np.ndarray],
        in_flight: InFlight,
        kept: Sequence[int] = (),
        empty: Sequence[int] = (),
        in_place: Sequence[int] = (),
    ) -> None:
        """Create the worker from this state, the leaves that are `kept` from the worker before, those that are `empty`,
        and these values in flight, with the current connections. Nothing copies the leaves `in_place` from then on."""
        name = self._program.fragment.name
        ports = ports_of(self.plan, name, self._replica, self._ends.sender, self._ends.receiver, self._ends.mailbox)
        assignment = Assignment(self._deployment, self._replica, ports)
        self._between = connections([assignment])
        # A free-running worker cannot see here when the others record: it goes by its own iterations.
        window = self._window and dataclasses.replace(self._window, ignores_others=True)
        (stopwatch,) = time_workers(self.plan, [assignment], window) if window else [None]
        kept_leaves = self._with_new_episodes(kept)
        self._worker = None  # its memory is free now
        empty_leaves = empty_part(self._deployment, self._replica, self._algorithm, self._env, empty)
        state = hold_state(self._deployment, leaves) | kept_leaves | empty_leaves
        self._worker = Worker(self._deployment, self._replica, ports, state, self._deadline, stopwatch, in_place)
        if name in self.plan.free_running:
            self._worker.copy_state()
        if in_flight:
            self._worker.restore(split_in_flight(self.plan, in_flight, self._worker))
        self._ending = False

    def run(self, iterations: int) -> Iterator[tuple[dict[str, Any], list[np.ndarray]]]:
        """Train; yields a report and its metrics after every iteration."""
        worker = self._working
        while iterations:
            outcomes = worker.iterate(iterations)
            iterations -= len(outcomes)
            for outcome in outcomes:
                yield self._report(worker, outcome), [np.asarray(value) for value in outcome.metrics.values()]

    def run_freely(self) -> None:
        """Train without waiting for others, until `end`."""
        self._working.run_freely(lambda: self._ending)

    def state(self, without: Sequence[int] = ()) -> dict[int, np.ndarray]:
        """Its leaves of the state, but for some; for a free-running replica, those after its last iteration."""
        worker = self._working
        leaves = worker.state_copy or worker.state()
        if worker.state_copy:
            others = set(self._program.state) - set(worker.state_copy) - set(without)
            leaves = leaves | worker.live(sorted(others))
        return {i: np.asarray(to_raw(leaf)) for i, leaf in leaves.items() if i not in without}

    def _with_new_episodes(self, leaves: Sequence[int]) -> dict[int, Any]:
        """Leaves of the last worker, for new episodes: what was done after the snapshot is done again."""
        held = self._worker.held(leaves) if self._worker and leaves else None
        if not held:
            return {}
        algorithm, structure = self._algorithm, jax.tree.structure(abstract_state(self._algorithm, self._env))

        def renew(leaves: dict[int, Any]) -> dict[int, Any]:
            others = [jax.numpy.zeros(())] * structure.num_leaves
            saved = [leaves.get(i, other) for i, other in enumerate(others)]
            state = algorithm.with_new_episodes(
                jax.tree.unflatten(structure, saved), jax.tree.unflatten(structure, others)
            )
            return {i: leaf for i, leaf in enumerate(jax.tree.leaves(state)) if i in leaves}

        return jax.jit(renew, donate_argnums=0)(held)

    def in_flight(self) -> dict[tuple[int, str], list[Any]]:
        """Its values in flight, for receives one iteration behind."""
        return self._working.in_flight()

    @property
    def env_restarts(self) -> int:
        """The number of its environments' restarts."""
        return self._env.restarts

    def timeline(self) -> Any:
        """Its timeline as lists; None if nothing is recorded."""
        stopwatch = self._worker.stopwatch if self._worker else None
        return stopwatch.timeline().as_lists() if stopwatch else None

    def doing(self) -> str:
        """What it is doing right now, as text."""
        return self._worker.doing() if self._worker else "is ready"

    def cause(self, error: BaseException) -> BaseException:
        """The environment's fault that caused an error, if there is one, else the error."""
        return self._env.failure or error

    def hanging(self) -> BaseException | None:
        """The fault of an environment that hangs in this process, if one does."""
        return self._env.host_pool.hanging() if self._env.host_pool else None

    def end(self) -> None:
        """Stop after the current iteration."""
        self._ending = True
        self._ends.end()

    def stop(self) -> None:
        """Stop before the next environment step, wake waiting threads, and drop all connections."""
        self._ending = True
        if self._worker is not None:
            self._worker.stop()
        self._ends.close()
        self._ends = Ends(self._exchange)

    def close(self) -> None:
        """Stop, and release all resources."""
        self.stop()
        self._exchange.close()
        if self._env.host_pool:
            self._env.host_pool.close()

    @property
    def _working(self) -> Worker:
        assert self._worker is not None, "load has not been called"
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
    """The processes of a plan, in order: the program and the replica index of each."""
    return [(program, replica) for program in plan.programs for replica in range(program.replicas)]


def names(plan: Plan) -> list[str]:
    """The names of the processes of a plan, in order."""
    return [program.worker(replica) for program, replica in places(plan)]


def resources(plan: Plan) -> list[dict[str, float]]:
    """The cluster resources of each process: its device, or an equal share of a device that several use."""
    devices = [program.fragment.devices[replica] for program, replica in places(plan)]
    share = [1 / devices.count(device) for device in devices]
    return [
        {"CPU": part} if device.startswith("cpu") else {"CPU": part, "GPU": part}
        for device, part in zip(devices, share, strict=True)
    ]


def hosts_environments(program: Program) -> bool:
    """Whether it steps host environments."""
    return bool(set(program.fragment.stages) & set(program.graph.host_stages))


def _site(program: Program, replica: int) -> Site:
    """A device of this process, and the devices of the replicas that it exchanges values with in collectives."""

    def device(process: int) -> Any:
        kind, _, number = program.fragment.devices[process if program.replicas > 1 else 0].partition(":")
        member = process if program.together and program.replicas > 1 else jax.process_index()
        devices = [d for d in jax.devices(kind) if d.process_index == member]
        return devices[int(number) % len(devices)]

    devices = (device(replica),)
    if not program.together or program.replicas == 1:
        return Site(devices)
    return Site(devices, 1, program.fragment.axis or "", tuple(device(i) for i in range(program.replicas)))
