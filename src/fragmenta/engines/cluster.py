"""Fragments in processes of their own. What is lost is replaced; all go on from the last state that was gathered."""

import collections
import contextlib
import queue
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fragmenta.engines.base import Report, Setup, report
from fragmenta.engines.control import FailedError, LostError, Peer
from fragmenta.engines.crew import Crew
from fragmenta.engines.dispatch import collect, part_of_state
from fragmenta.engines.episode_starts import EpisodeStarts
from fragmenta.engines.errors import is_permanent, shown
from fragmenta.engines.in_flight import InFlight, join_in_flight
from fragmenta.engines.launcher import Launcher
from fragmenta.engines.member import machine
from fragmenta.profiling.timeline import WorkerTimeline
from fragmenta.worker.execute import DeadlineError
from fragmenta.worker.outcome import Outcome

SNAPSHOT_SECONDS = 3.0
"""About how often the state of all fragments is gathered, to go on from if one is lost."""
SNAPSHOT_SHARE = 0.05
"""How much of the time that may take at most."""
FIRST_BACK_OFF, LONGEST_BACK_OFF = 0.5, 30.0

Heard = dict[int, collections.deque[tuple[dict[str, Any], list[np.ndarray]]]]


class ClusterEngine:
    """Runs a plan in processes. Use it as a context manager: leaving it ends every process that it started."""

    def __init__(self, setup: Setup, launcher: Launcher) -> None:
        self.plan, self._setup = setup.plan, setup
        self._crew = Crew(setup, launcher)
        self._free_runners = [
            i for i, (program, _) in enumerate(self._crew.places) if program.fragment.name in setup.plan.free_running
        ]
        self._running_freely: dict[int, Peer] = {}
        """Of the free-running workers, those that are at work."""
        self._replacing: dict[int, threading.Thread] = {}
        self._unplaced: dict[int, LostError | FailedError] = {}
        """What became of free-running workers that could not be replaced."""
        self._restarts = self._done = self._good = 0
        self._leaves: list[Any] = []
        self._in_flight: InFlight = {}
        self._chunk = 1
        self._episodes = EpisodeStarts(setup, self._crew)
        self.env = self._episodes.env
        try:
            try:
                self._crew.start(range(len(self._crew)))
                self._crew.connect()
            except (LostError, FailedError) as failure:
                self._recover(failure)
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
        if not self._free_runners:
            return
        running = dict(self._running_freely)
        for peer in running.values():
            peer.tell("end")
        with contextlib.suppress(LostError):  # who is lost now is not needed any more
            for peer, number in [(peer, peer.order("rest")) for peer in running.values()]:
                peer.answer(number, self._setup.deadline)
            self._gather()

    def timelines(self) -> list[WorkerTimeline]:
        """What every worker did in the window, in this process' time."""
        found = []
        for i, peer in self._crew.peers.items():
            if i in self._free_runners and i not in self._running_freely:
                continue
            sent = time.monotonic()
            try:
                answer, _ = peer.ask("timeline", self._crew.patience)
            except LostError:
                continue  # one that runs freely, at the very end
            # The clocks of two machines are compared on the way there and back: half of it each is the best guess.
            ahead = answer["clock"] - (sent + time.monotonic()) / 2
            same_clock = peer.hello["machine"].split()[0] == machine().split()[0]
            if answer["timeline"] is not None:
                found.append(WorkerTimeline.from_lists(answer["timeline"], 0.0 if same_clock else ahead))
        return found

    def close(self) -> None:
        """End all processes."""
        self._crew.close()
        self._await_replacements()

    def __enter__(self) -> "ClusterEngine":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _load(self) -> None:
        numbers = {i: self._begin_load(i, self._leaves) for i in range(len(self._crew))}
        for i, number in numbers.items():
            self._crew.peers[i].answer(number, self._crew.patience)
        for i in self._free_runners:
            self._let_run_freely(i)

    def _let_run_freely(self, i: int) -> None:
        self._crew.peers[i].order("run_freely")
        self._running_freely[i] = self._crew.peers[i]

    def _begin_load(self, i: int, leaves: list[Any]) -> int:
        program, replica = self._crew.places[i]
        part = part_of_state(program, replica, leaves)
        arrays = [np.asarray(leaf) for leaf in (*part.values(), *self._in_flight.values())]
        return self._crew.peers[i].order("load", arrays, leaves=list(part), in_flight=list(self._in_flight))

    def _stretch(self, iterations: int) -> Iterator[Report]:
        """So many iterations, and then a snapshot of the state."""
        began, crew = time.monotonic(), self._crew
        steady = [i for i in range(len(crew)) if i not in self._free_runners]
        runs = {i: crew.peers[i].order("run", iterations=iterations) for i in steady}
        heard: Heard = {i: collections.deque() for i in steady}
        for iteration in range(self._good, self._good + iterations):
            while not all(heard.values()):
                self._hear(runs, heard)
            found = self._report(iteration, {i: reports.popleft() for i, reports in heard.items()})
            if iteration >= self._done:  # else it was reported before something was lost
                self._done += 1
                yield found
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
        i = peer.index
        if failure := self._unplaced.pop(i, None):
            self._replace_free_runner(i, failure)
        elif (self._running_freely if i in self._free_runners else self._crew.peers).get(i) is not peer:
            return  # word of one that was replaced already, or is about to be
        elif message is None or "failed" in message:
            failure = LostError(f"{peer.name} {peer.lost}") if message is None else peer.failure(message)
            if i in self._free_runners:
                self._replace_free_runner(i, failure)
            elif message is None or message["answers"] == runs[i]:  # else it was raised where it was asked for
                raise failure
        elif message["report"] == runs.get(i):
            heard[i].append((message, arrays))

    def _report(self, iteration: int, found: dict[int, tuple[dict[str, Any], list[np.ndarray]]]) -> Report:
        fill: dict[str, float] = {}
        busy, outcomes = [], []
        for i, (message, arrays) in found.items():
            metrics = dict(zip(message["metrics"], arrays, strict=True))
            outcomes.append(Outcome(metrics, message["lag"], message["source"], message["dropped"]))
            busy.append((self._crew.places[i][0].fragment.name, message["busy"]))
            for pair, share in message["fill"].items():
                fill[pair] = max(share, fill.get(pair, 0.0))
        return report(self.plan, iteration, outcomes, busy, fill)

    def _gather(self) -> None:
        """Keep the whole state; the part of one that is being replaced stays as it was."""
        crew = self._crew
        settled = {i: peer for i, peer in crew.peers.items() if i not in self._free_runners} | self._running_freely
        numbers = {i: peer.order("state") for i, peer in settled.items()}
        kept, held, env_restarts = [], [], 0
        for i, (program, replica) in enumerate(crew.places):
            part = None
            if i in settled:
                try:
                    answer, arrays = settled[i].answer(numbers[i], self._setup.deadline)
                    leaves, env_restarts = answer["leaves"], env_restarts + answer["env_restarts"]
                    part, late = dict(zip(leaves, arrays, strict=False)), iter(arrays[len(leaves) :])
                    held.append({(value, to): [next(late) for _ in range(n)] for value, to, n in answer["in_flight"]})
                except LostError:
                    if i not in self._free_runners:
                        raise
            kept.append((program, part or part_of_state(program, replica, self._leaves)))
        self._leaves = collect(self.plan, kept, self._leaves)
        self._in_flight = join_in_flight(self.plan, held)
        self._episodes.restarted(env_restarts)

    def _recover(self, failure: LostError | FailedError) -> None:
        """Replace what was lost, and let everybody go on from the last state that was gathered."""
        while True:
            failure = self._crew.cause(failure)
            self._spend(failure)
            self._running_freely.clear()
            self._await_replacements()
            lost = self._crew.bring_to_rest(failure)
            time.sleep(min(FIRST_BACK_OFF * 2 ** (self._restarts - 1), LONGEST_BACK_OFF))
            try:
                self._crew.start(lost)
                self._crew.connect()
                if self._leaves:  # else it has not begun yet
                    self._leaves = self._episodes.renewed(self._leaves, (self._good, self._restarts))
                    self._load()
                return
            except (LostError, FailedError) as again:
                failure = again

    def _spend(self, failure: LostError | FailedError) -> None:
        """Take one replacement from the budget; raises the failure if none is left or it would only come again."""
        budget = self._setup.options.restarts
        if is_permanent(failure) or self._restarts >= budget:
            raise shown(failure) from None
        self._restarts += 1
        trace, who = (failure.trace, f"{failure.worker}: ") if isinstance(failure, FailedError) else ("", "")
        again = f"replaced ({self._restarts} of {budget}), to go on after {self._good} iterations"
        print(f"{trace}fragmenta: {who}{failure}; {again}", file=sys.stderr, flush=True)

    def _replace_free_runner(self, i: int, failure: LostError | FailedError) -> None:
        """Replace one that nobody waits for, while the others go on; without it once the budget is spent."""
        self._running_freely.pop(i, None)
        if self._restarts >= self._setup.options.restarts and self._running_freely and not is_permanent(failure):
            print(f"fragmenta: {failure}; training goes on without it", file=sys.stderr, flush=True)
            self._crew.end(i)
            return
        self._spend(failure)
        self._crew.end(i)
        thread = threading.Thread(target=self._add_free_runner, args=(i,), name="fragmenta-replaces", daemon=True)
        self._replacing[i] = thread
        thread.start()

    def _await_replacements(self) -> None:
        for thread in self._replacing.values():
            thread.join()
        self._replacing.clear()
        self._unplaced.clear()

    def _add_free_runner(self, i: int) -> None:
        try:
            self._crew.start([i])
            self._crew.connect([i])
            leaves = self._episodes.renewed(self._leaves, (self._good, self._restarts), only=i)
            self._crew.peers[i].answer(self._begin_load(i, leaves), self._crew.patience)
            self._let_run_freely(i)
        except (LostError, FailedError) as failure:
            self._unplaced[i] = failure
            self._crew.inbox.put((self._crew.peers[i], None, []))  # wakes who hears
        except RuntimeError:
            if not self._crew.is_closed:  # else nothing can be started any more
                raise
