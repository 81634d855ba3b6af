"""Runs fragments in separate processes. Lost processes are replaced, and all resume from the last snapshot."""

import collections
import contextlib
import queue
import sys
import threading
import time
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from fragmenta.engines.base import IterationReport, Setup, report_of_messages
from fragmenta.engines.control import FailedError, LostError, Peer
from fragmenta.engines.crew import Crew
from fragmenta.engines.episode_starts import EpisodeStarts
from fragmenta.engines.errors import is_permanent, user_error
from fragmenta.engines.in_flight import InFlight
from fragmenta.engines.launcher import Launcher
from fragmenta.engines.reception import machine
from fragmenta.engines.snapshot import SNAPSHOT_SECONDS, ResumePoint
from fragmenta.profiling.timeline import WorkerTimeline
from fragmenta.worker.execute import DeadlineError

FIRST_BACK_OFF, LONGEST_BACK_OFF = 0.5, 30.0
WAKE: dict[str, Any] = {}
"""A message that says to look at the replacements that failed."""

_Read = TypeVar("_Read")
Reports = dict[int, collections.deque[tuple[dict[str, Any], list[np.ndarray]]]]


class ClusterEngine:
    """Runs a plan in processes. Use it as a context manager: leaving it terminates every process that it started."""

    def __init__(self, setup: Setup, launcher: Launcher) -> None:
        self.plan, self._setup = setup.plan, setup
        self._crew = Crew(setup, launcher)
        self._free_runners = [
            i for i, (program, _) in enumerate(self._crew.places) if program.fragment.name in setup.plan.free_running
        ]
        self._running_freely: dict[int, Peer] = {}
        """The free-running workers that are currently running."""
        self._replacing: dict[int, threading.Thread] = {}
        self._failed_replacements: dict[int, LostError | FailedError] = {}
        """Errors of free-running workers whose replacement failed."""
        self._restarts = self._done = self._reached = 0
        """How many processes were replaced, iterations were reported, and iterations the processes have completed; the
        snapshot may be behind, and after a loss the processes repeat what follows it."""
        self._snapshot, self._is_current = ResumePoint(setup, self._crew), False
        """The snapshot, and whether it is of the latest iteration."""
        self._chunk = 1
        self._episodes = EpisodeStarts(setup, self._crew)
        self.env, self.episodes = self._episodes.env, self._episodes.current
        try:
            try:
                self._crew.start(range(len(self._crew)))
                self._crew.connect()
            except (LostError, FailedError) as failure:
                self._recover(failure)
        except BaseException as error:
            self.close()
            raise user_error(error) from None

    def begin(self, state: Sequence[Any], in_flight: InFlight | None = None) -> None:
        """Load the leaves of the state and the values in flight into the fragments."""
        self._snapshot.begin(state, in_flight or {})
        try:
            self._load()
        except (LostError, FailedError) as failure:
            self._recover(failure)
        self._is_current = True

    def run(self, iterations: int) -> Iterator[IterationReport]:
        """Train, and yield a report per iteration. Lost processes are replaced, within the budget.

        Call it again to continue; free-running fragments keep running until `finish`.
        """
        target = self._done + iterations
        while self._reached < target:
            try:
                yield from self._run_chunk(min(self._chunk, target - self._reached))
                if self._snapshot.is_due:
                    self._gather()
            except (LostError, FailedError) as failure:
                self._recover(failure)

    def state(self, without: Sequence[str] = ()) -> list[Any]:
        """The leaves of the state after the last iteration; for free-running fragments, after their own last one."""
        return self._at_present(lambda: self._snapshot.whole(self._running(), without))

    @property
    def replaced(self) -> int:
        """The number of processes lost and replaced so far."""
        return self._restarts

    def in_flight(self) -> InFlight:
        """Values in flight to fragments that work one iteration behind."""
        return self._at_present(lambda: self._snapshot.in_flight)

    def finish(self) -> None:
        """Stop free-running fragments after their current iteration."""
        if not self._free_runners:
            return
        running = dict(self._running_freely)
        for peer in self._crew.peers.values():  # consumers too: a fragment may wait until one takes its values
            peer.tell("end")
        with contextlib.suppress(LostError):  # a process lost now is no longer needed
            for peer, number in [(peer, peer.order("rest")) for peer in running.values()]:
                peer.answer(number, self._setup.deadline)
            self._gather()
        self._is_current = True

    def timelines(self) -> list[WorkerTimeline]:
        """The recorded timelines of all workers, in this process' time."""
        timelines = []
        for i, peer in self._crew.peers.items():
            if i in self._free_runners and i not in self._running_freely:
                continue
            sent = time.monotonic()
            try:
                answer, _ = peer.ask("timeline", self._crew.patience)
            except LostError:
                continue  # a free-running worker, at the very end
            # Clock offset between two machines: assume that request and answer take equally long.
            ahead = answer["clock"] - (sent + time.monotonic()) / 2
            same_clock = peer.hello["machine"].split()[0] == machine().split()[0]
            if answer["timeline"] is not None:
                timelines.append(WorkerTimeline.from_lists(answer["timeline"], 0.0 if same_clock else ahead))
        return timelines

    def close(self) -> None:
        """Terminate all processes."""
        self._crew.close()
        self._await_replacements()

    def __enter__(self) -> "ClusterEngine":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _load(self, keepers: Container[int] = ()) -> None:
        numbers = {i: self._snapshot.load(i, self._snapshot.leaves, keepers) for i in range(len(self._crew))}
        for i, number in numbers.items():
            self._crew.peers[i].answer(number, self._crew.patience)
        self._snapshot.leave_in_place()
        self._reached = self._snapshot.iteration
        for i in self._free_runners:
            self._let_run_freely(i)

    def _let_run_freely(self, i: int) -> None:
        self._crew.peers[i].order("run_freely")
        self._running_freely[i] = self._crew.peers[i]

    def _at_present(self, read: Callable[[], _Read]) -> _Read:
        """Read the snapshot once it is of the latest iteration; what a loss takes back is repeated first."""
        while True:
            try:
                for _ in self._run_chunk(self._done - self._reached) if self._reached < self._done else ():
                    pass  # these iterations were already reported
                if not self._is_current:
                    self._gather()
                return read()
            except (LostError, FailedError) as failure:
                self._recover(failure)

    def _run_chunk(self, iterations: int) -> Iterator[IterationReport]:
        """Run this many iterations."""
        began, crew, self._is_current = time.monotonic(), self._crew, False
        steady = [i for i in range(len(crew)) if i not in self._free_runners]
        runs = {i: crew.peers[i].order("run", iterations=iterations) for i in steady}
        pending: Reports = {i: collections.deque() for i in steady}
        for iteration in range(self._reached, self._reached + iterations):
            while not all(pending.values()):
                self._next_report(runs, pending)
            messages = [(crew.places[i][0].fragment.name, *reports.popleft()) for i, reports in pending.items()]
            merged = report_of_messages(self.plan, iteration, messages)
            if iteration >= self._done:  # else it was already reported, before a process was lost
                self._done += 1
                yield merged
        for i, number in runs.items():
            crew.peers[i].answer(number, self._setup.deadline)
        self._reached += iterations
        seconds = max(time.monotonic() - began, 1e-9)
        self._chunk = max(1, min(2 * self._chunk, int(iterations * SNAPSHOT_SECONDS / seconds)))

    def _next_report(self, runs: dict[int, int], pending: Reports) -> None:
        """Wait for the next report; raises LostError or FailedError if a process was lost or failed."""
        patience = 2 * self._setup.deadline
        try:
            peer, message, arrays = self._crew.inbox.get(timeout=patience)
        except queue.Empty:
            peers = self._crew.peers
            late = ", ".join(f"{peers[i].name} ({peers[i].doing})" for i, reports in pending.items() if not reports)
            raise DeadlineError(f"no report from {late} within {patience:g} s") from None
        i = peer.index
        current = self._running_freely if i in self._free_runners else self._crew.peers
        if failure := self._failed_replacements.pop(i, None):
            self._replace_free_runner(i, failure)
        elif message is WAKE or current.get(i) is not peer:
            return  # dealt with by a recovery; or of a process that was replaced, or is about to be
        elif message is None or "failed" in message:
            failure = LostError(f"{peer.name} {peer.lost}") if message is None else peer.failure(message)
            if i in self._free_runners:
                self._replace_free_runner(i, failure)
            elif message is None or message["answers"] == runs[i]:  # else `answer` raised it already
                raise failure
        elif message["report"] == runs.get(i):
            pending[i].append((message, arrays))

    def _running(self) -> dict[int, Peer]:
        """The processes that are there; a free-running one may be being replaced."""
        steady = {i: peer for i, peer in self._crew.peers.items() if i not in self._free_runners}
        return steady | self._running_freely

    def _gather(self) -> None:
        self._snapshot.gather(self._running(), self._free_runners, self._reached)
        self._episodes.set_restarts(self._snapshot.env_restarts)
        self._is_current = True

    def _recover(self, failure: LostError | FailedError) -> None:
        """Replace lost processes, and let all resume from the last snapshot."""
        while True:
            failure = self._crew.cause(failure)
            self._spend(failure)
            self._running_freely.clear()
            self._await_replacements()
            lost = self._crew.bring_to_rest(failure)
            for failed in (peer.failed for peer in self._crew.peers.values() if peer.failed):
                if is_permanent(failed):  # it was still to come, as the fault of an environment that others waited for
                    raise user_error(failed) from None
            time.sleep(min(FIRST_BACK_OFF * 2 ** (self._restarts - 1), LONGEST_BACK_OFF))
            try:
                self._crew.start(lost)
                self._crew.connect()
                if leaves := self._snapshot.leaves:  # else `begin` has not been called yet
                    salt = self._snapshot.iteration, self._restarts
                    self._snapshot.leaves = self._episodes.renewed_state(leaves, salt)
                    self._load(self._snapshot.keepers(range(len(self._crew))))
                return
            except (LostError, FailedError) as again:
                failure = again

    def _spend(self, failure: LostError | FailedError) -> None:
        """Take one replacement from the budget; raises the failure if the budget is spent or a retry would fail too."""
        budget = self._setup.options.restarts
        if is_permanent(failure) or self._restarts >= budget:
            raise user_error(failure) from None
        self._restarts += 1
        trace, prefix = (failure.trace, f"{failure.worker}: ") if isinstance(failure, FailedError) else ("", "")
        action = f"replaced ({self._restarts} of {budget}), resuming after {self._snapshot.iteration} iterations"
        print(f"{trace}fragmenta: {prefix}{failure}; {action}", file=sys.stderr, flush=True)

    def _replace_free_runner(self, i: int, failure: LostError | FailedError) -> None:
        """Replace a free-running worker, with those of other fragments that it waits for or that wait for it, unless
        they have a large replay, while the others continue; once the budget is spent, continue without them."""
        chain = [j for j in self._free_runners if self._crew.places[j][1] == self._crew.places[i][1]]
        for j in chain:
            self._running_freely.pop(j, None)
        budget = self._setup.options.restarts
        is_spent = self._restarts >= budget and bool(self._running_freely) and not is_permanent(failure)
        others = set() if is_spent else self._crew.healthy(failure) - {i}
        keeping = [j for j in chain if j in others and self._snapshot.keeps(j)]
        for j in set(chain) - set(keeping):
            self._crew.end(j)
        if is_spent:
            print(f"fragmenta: {failure}; training continues without it", file=sys.stderr, flush=True)
            return
        self._spend(failure)
        work = {"target": self._add_free_runners, "args": (chain, keeping), "name": "fragmenta-replaces"}
        self._replacing[i] = threading.Thread(**work, daemon=True)
        self._replacing[i].start()

    def _await_replacements(self) -> None:
        for thread in self._replacing.values():
            thread.join()
        self._replacing.clear()
        self._failed_replacements.clear()

    def _add_free_runners(self, chain: list[int], keeping: list[int]) -> None:
        """Start these workers again, but for those that only have to begin anew with what they keep."""
        try:
            lost = self._crew.rest(keeping)
            self._crew.start([i for i in chain if i not in keeping or i in lost])
            self._crew.connect(chain)
            salt = self._snapshot.iteration, self._restarts
            leaves = self._episodes.renewed_state(self._snapshot.leaves, salt, only=chain)
            keepers = self._snapshot.keepers(chain)
            for i in chain:
                self._crew.peers[i].answer(self._snapshot.load(i, leaves, keepers), self._crew.patience)
                self._let_run_freely(i)
        except (LostError, FailedError) as failure:
            self._failed_replacements[chain[0]] = failure
            self._crew.inbox.put((self._crew.peers[chain[0]], WAKE, []))
        except RuntimeError:
            if not self._crew.is_closed:  # else the error is only that nothing can be started any more
                raise
