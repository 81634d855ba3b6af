"""Fragments in processes of their own. What is lost is replaced; all go on from the last state that was gathered."""

import collections
import contextlib
import dataclasses
import queue
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from fragmenta.coordinator.dispatch import collect, part_of_state
from fragmenta.coordinator.in_flight import InFlight, join_in_flight
from fragmenta.engines.base import Report, Setup
from fragmenta.engines.control import FailedError, LostError, Peer
from fragmenta.engines.crew import STARTING_SECONDS, Crew
from fragmenta.engines.errors import lasts, shown
from fragmenta.engines.launch import Launcher
from fragmenta.engines.member import machine
from fragmenta.engines.remote_pool import RemotePool
from fragmenta.engines.replica import hosts_environments
from fragmenta.envs import HostEnvironment
from fragmenta.worker.execute import DeadlineError
from fragmenta.worker.timeline import Recording

SNAPSHOT_SECONDS = 1.0
"""About how often the state of all fragments is gathered, to go on from if one is lost."""
SNAPSHOT_SHARE = 0.05
"""How much of the time that may take at most."""
FIRST_BACK_OFF = 0.5

Heard = dict[int, collections.deque[tuple[dict[str, Any], list[np.ndarray]]]]


class ClusterEngine:
    """Runs a plan in processes. Use it as a context manager: leaving it ends every process that it started."""

    def __init__(self, setup: Setup, launcher: Launcher) -> None:
        self.plan, self._setup = setup.plan, setup
        self._crew = Crew(setup, launcher)
        self._roamers = [
            i for i, (program, _) in enumerate(self._crew.places) if program.fragment.name in setup.plan.free_running
        ]
        self._restarts = self._done = self._good = 0
        self._leaves: list[Any] = []
        self._in_flight: InFlight = {}
        self._chunk = 1
        self.env = setup.env
        if isinstance(setup.env, HostEnvironment):
            self.env = dataclasses.replace(setup.env, pool=RemotePool(setup.env.pool, self._reset))
        try:
            self._crew.start(range(len(self._crew)))
            self._crew.connect()
        except BaseException as error:
            self.close()
            raise shown(error) from None

    def begin(self, state: Sequence[Any], in_flight: InFlight | None = None) -> None:
        """Give the fragments the leaves of the state, and what is on its way to them."""
        self._leaves, self._in_flight = list(state), in_flight or {}
        try:
            self._load()
        except (LostError, FailedError) as failure:
            self._recover(failure)

    def run(self, iterations: int) -> Iterator[Report]:
        """Train, and yield a report per iteration. What is lost on the way is replaced, within the budget.

        May be called again to go on; fragments that run freely go on by themselves until `finish`.
        """
        target = self._done + iterations
        while self._good < target:
            try:
                yield from self._stretch(min(self._chunk, target - self._good))
            except (LostError, FailedError) as failure:
                self._recover(failure)

    def state(self) -> list[Any]:
        """The leaves of the state after the last iteration; for fragments that run freely, after their own last one."""
        return self._leaves

    @property
    def replaced(self) -> int:
        """How many processes were lost and replaced so far."""
        return self._restarts

    def in_flight(self) -> InFlight:
        """What fragments that work one iteration behind will take next."""
        return self._in_flight

    def finish(self) -> None:
        """Let fragments that run freely end after the iteration that they are in."""
        for i in self._roamers:
            self._crew.peers[i].tell("end")
        for i in self._roamers:
            with contextlib.suppress(LostError):  # its part stays as it was
                self._crew.peers[i].ask("rest", self._setup.deadline)
        self._gather()

    def recordings(self) -> list[Recording]:
        """What every worker did in the window, in this process' time."""
        found = []
        for peer in self._crew.peers.values():
            sent = time.monotonic()
            try:
                answer, _ = peer.ask("recording", STARTING_SECONDS)
            except LostError:
                continue  # one that runs freely, at the very end
            # The clocks of two machines are compared on the way there and back: half of it each is the best guess.
            ahead = answer["clock"] - (sent + time.monotonic()) / 2
            same_clock = peer.hello["machine"].split()[0] == machine().split()[0]
            if answer["recording"] is not None:
                found.append(Recording.from_lists(answer["recording"], 0.0 if same_clock else ahead))
        return found

    def close(self) -> None:
        """End all processes."""
        self._crew.close()

    def __enter__(self) -> "ClusterEngine":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _load(self) -> None:
        numbers = {i: self._begin_load(i) for i in range(len(self._crew))}
        for i, number in numbers.items():
            self._crew.peers[i].answer(number, STARTING_SECONDS)
        for i in self._roamers:
            self._crew.peers[i].order("roam")

    def _begin_load(self, i: int) -> int:
        program, replica = self._crew.places[i]
        part = part_of_state(program, replica, self._leaves)
        arrays = [np.asarray(leaf) for leaf in (*part.values(), *self._in_flight.values())]
        return self._crew.peers[i].order("load", arrays, leaves=list(part), in_flight=list(self._in_flight))

    def _reset(self, seeds: np.ndarray) -> list[list[np.ndarray]]:
        """Start episodes in all environments, wherever they are; per part what `Replica.reset` answers."""
        hosts = [i for i, (program, _) in enumerate(self._crew.places) if hosts_environments(program)]
        parts = np.split(seeds, len(hosts))
        numbers = [self._crew.peers[i].order("reset", [part]) for i, part in zip(hosts, parts, strict=True)]
        return [self._crew.peers[i].answer(n, STARTING_SECONDS)[1] for i, n in zip(hosts, numbers, strict=True)]

    def _stretch(self, iterations: int) -> Iterator[Report]:
        """So many iterations, and then a snapshot of the state."""
        began, crew = time.monotonic(), self._crew
        steady = [i for i in range(len(crew)) if i not in self._roamers]
        runs = {i: crew.peers[i].order("run", iterations=iterations) for i in steady}
        heard: Heard = {i: collections.deque() for i in steady}
        for iteration in range(self._good, self._good + iterations):
            while not all(heard.values()):
                self._hear(runs, heard)
            report = self._report(iteration, {i: reports.popleft() for i, reports in heard.items()})
            if iteration >= self._done:  # else it was reported before something was lost
                self._done += 1
                yield report
        for i, number in runs.items():
            crew.peers[i].answer(number, self._setup.deadline)
        trained = time.monotonic()
        self._gather()
        self._good += iterations
        seconds = max(SNAPSHOT_SECONDS, (time.monotonic() - trained) / SNAPSHOT_SHARE)
        self._chunk = max(1, min(2 * self._chunk, int(iterations * seconds / max(trained - began, 1e-9))))

    def _hear(self, runs: dict[int, int], heard: Heard) -> None:
        """Wait for the next report; raises what was lost or failed instead."""
        patience = 2 * self._setup.deadline
        try:
            peer, message, arrays = self._crew.inbox.get(timeout=patience)
        except queue.Empty:
            peers = self._crew.peers
            late = ", ".join(f"{peers[i].name} ({peers[i].doing})" for i, reports in heard.items() if not reports)
            raise DeadlineError(f"no report from {late} within {patience:g} s") from None
        if self._crew.peers.get(peer.index) is not peer:
            return  # word of one that was replaced already
        if message is None or "failed" in message:
            failure = self._crew.loss(peer) if message is None else peer.failure(message)
            if peer.index in runs:
                raise failure
            self._replace_roamer(peer, failure)
        elif message["report"] == runs.get(peer.index):
            heard[peer.index].append((message, arrays))

    def _report(self, iteration: int, found: dict[int, tuple[dict[str, Any], list[np.ndarray]]]) -> Report:
        metrics: dict[int, Any] = {}
        busy: dict[str, list[float]] = {}
        fill: dict[str, float] = {}
        for i, (message, arrays) in found.items():
            metrics |= dict(zip(message["metrics"], arrays, strict=True))
            busy.setdefault(self._crew.places[i][0].fragment.name, []).append(message["busy"])
            for pair, share in message["fill"].items():
                fill[pair] = max(share, fill.get(pair, 0.0))
        messages = [message for message, _ in found.values()]
        source = next((message["source"] for message in messages if message["source"] is not None), None)
        (feeder,) = self.plan.free_running or ("",)
        return Report(
            iteration,
            metrics,
            {name: sum(shares) / len(shares) for name, shares in busy.items()},
            max((message["lag"] for message in messages if message["lag"] is not None), default=None),
            None if source is None else f"{feeder}[{source}]",
            sum(message["dropped"] for message in messages),
            fill,
        )

    def _gather(self) -> None:
        """Keep the whole state; the part of one that is being replaced stays as it was."""
        crew = self._crew
        numbers = {i: (peer, peer.order("state")) for i, peer in crew.peers.items()}
        kept, held = [], []
        for i, (program, replica) in enumerate(crew.places):
            peer, number = numbers[i]
            try:
                answer, arrays = peer.answer(number, self._setup.deadline)
                leaves, late = answer["leaves"], iter(arrays[len(answer["leaves"]) :])
                kept.append((program, dict(zip(leaves, arrays, strict=False))))
                held.append({(value, to): [next(late) for _ in range(n)] for value, to, n in answer["in_flight"]})
            except LostError:
                if i not in self._roamers:
                    raise
                kept.append((program, part_of_state(program, replica, self._leaves)))
        self._leaves = collect(self.plan, kept, self._leaves)
        self._in_flight = join_in_flight(self.plan, held)

    def _recover(self, failure: LostError | FailedError) -> None:
        """Replace what was lost, and let everybody go on from the last state that was gathered."""
        while True:
            self._spend(failure)
            lost = self._crew.bring_to_rest(failure)
            time.sleep(FIRST_BACK_OFF * 2 ** (self._restarts - 1))
            try:
                self._crew.start(lost)
                self._crew.connect()
                self._leaves = self._renewed()
                self._load()
                return
            except (LostError, FailedError) as again:
                failure = again

    def _spend(self, failure: LostError | FailedError) -> None:
        """Take one replacement from the budget; raises the failure if none is left or it would only come again."""
        budget = self._setup.options.restarts
        if lasts(failure) or self._restarts >= budget:
            raise shown(failure) from None
        self._restarts += 1
        trace, who = (failure.trace, f"{failure.worker}: ") if isinstance(failure, FailedError) else ("", "")
        again = f"replaced ({self._restarts} of {budget}), to go on after {self._good} iterations"
        print(f"{trace}fragmenta: {who}{failure}; {again}", file=sys.stderr, flush=True)

    def _renewed(self) -> list[Any]:
        """The state to go on from. Environments on the host cannot be put back: they begin new episodes."""
        setup, env = self._setup, self.env
        if not isinstance(env, HostEnvironment):
            return self._leaves
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(setup.seed), self._good), self._restarts)
        try:
            fresh = jax.jit(lambda key: setup.algorithm.init(env, key))(key)
        except Exception:
            if isinstance(env.pool, RemotePool) and env.pool.lost:
                raise env.pool.lost from None
            raise
        saved = jax.tree.unflatten(jax.tree.structure(fresh), self._leaves)
        return jax.tree.leaves(setup.algorithm.with_new_episodes(saved, fresh))

    def _replace_roamer(self, peer: Peer, failure: LostError | FailedError) -> None:
        """Replace one that nobody waits for, while the others go on."""
        self._crew.end(peer.index)
        others = [i for i in self._roamers if not self._crew.peers[i].lost]
        if self._restarts >= self._setup.options.restarts and others and not lasts(failure):
            print(f"fragmenta: {failure}; training goes on without it", file=sys.stderr, flush=True)
            return
        self._spend(failure)
        threading.Thread(target=self._add_roamer, args=(peer.index,), name="fragmenta-replaces", daemon=True).start()

    def _add_roamer(self, i: int) -> None:
        try:
            self._crew.start([i])
            self._crew.connect([i])
            self._crew.peers[i].answer(self._begin_load(i), STARTING_SECONDS)
            self._crew.peers[i].order("roam")
        except (LostError, FailedError, OSError, RuntimeError):
            pass  # the loss of this one is in the inbox as well, or all has come to an end
