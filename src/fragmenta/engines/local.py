"""Runs a plan in one process: a thread per worker, values passed by reference. No server, no port."""

import collections
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fragmenta.engines.base import IterationReport, report
from fragmenta.engines.dispatch import assign, collect, compile_plan, connections, positions, time_workers
from fragmenta.engines.holding import Source, state_of
from fragmenta.engines.in_flight import InFlight, join_in_flight, split_in_flight
from fragmenta.engines.in_place import in_place
from fragmenta.envs import Environment
from fragmenta.graph import Delivery, Plan
from fragmenta.profiling.timeline import Window, WorkerTimeline
from fragmenta.worker.channels.mailbox import Mailbox, mailbox
from fragmenta.worker.channels.memory import ClosedError, MemoryChannel
from fragmenta.worker.execute import DeadlineError, Worker
from fragmenta.worker.outcome import Outcome
from fragmenta_host.episodes import Episodes

REPORTS_AHEAD = 4
"""How often a worker may report before it waits for the caller. It reports all iterations of a burst at once: threads
that take turns for each would take longer than short iterations do."""


class LocalEngine:
    """Runs a plan on this machine. Use it as a context manager: leaving it stops every thread that it started."""

    env: Environment
    replaced = 0

    def __init__(
        self,
        plan: Plan,
        deadline: float = 300.0,
        window: Window | None = None,
        source: Source | None = None,
    ) -> None:
        """Compile everything. With a window, workers record a timeline of its iterations; with a `source`, leaves of
        the state may be given by their shape only."""
        self.plan, self.deadline, self._window, self._source = plan, deadline, window, source
        self._deployments, self._in_place = compile_plan(plan), in_place(plan.graph)
        self._channels: list[MemoryChannel] = []
        self._failure: tuple[Worker, BaseException] | None = None
        self._lock = threading.Lock()
        self._mailboxes: list[Mailbox] = []
        self._ending = threading.Event()
        self._threads: dict[int, threading.Thread] = {}
        self._done = 0

    def begin(self, state: Sequence[Any], in_flight: InFlight | None = None) -> None:
        """Give every worker its leaves of the state, its channels, and its values in flight."""
        assignments = assign(self.plan, self._deployments, self._channel, self._mailbox)
        held = collections.Counter(i for a in assignments for i in a.deployment.schedule.program.state)
        shared = {i for i, workers in held.items() if workers > 1}
        self._initial = [None if i in held else leaf for i, leaf in enumerate(state)]
        self._between = connections(assignments)
        stopwatches = time_workers(self.plan, assignments, self._window) if self._window else [None] * len(assignments)
        self._workers = [
            Worker(
                a.deployment,
                a.replica,
                a.ports,
                state_of(a.deployment, a.replica, state, shared, self._source),
                self.deadline,
                stopwatch,
                self._in_place,
            )
            for a, stopwatch in zip(assignments, stopwatches, strict=True)
        ]
        for worker in self._workers:
            if self._runs_freely(worker):
                worker.copy_state()  # before its thread starts, because `state` may be called at once
        if in_flight:
            for worker in self._workers:
                worker.restore(split_in_flight(self.plan, in_flight, worker))
        self._reports = [self._channel(REPORTS_AHEAD) for _ in self._workers]
        self._reported: list[collections.deque[Outcome]] = [collections.deque() for _ in self._workers]

    def run(self, iterations: int) -> Iterator[IterationReport]:
        """Train, and yield a report per iteration. An error in any worker is re-raised here.

        Call it again to continue; between two calls, `state` is a consistent snapshot. Free-running fragments keep
        running until `finish`.
        """
        if self._ending.is_set():
            raise RuntimeError("this engine has finished: start a new one from its state")
        for index, worker in enumerate(self._workers):
            if index in self._threads and self._runs_freely(worker):
                continue
            name, work = f"fragmenta-{worker.name}", (index, iterations)
            self._threads[index] = threading.Thread(target=self._work, args=work, name=name, daemon=True)
            self._threads[index].start()
        for _ in range(iterations):
            yield self._report(self._done)
            self._done += 1
        self._wait_for([i for i, worker in enumerate(self._workers) if not self._runs_freely(worker)])

    def finish(self) -> None:
        """Stop free-running fragments after their current iteration."""
        self._ending.set()
        for box in self._mailboxes:
            box.end()
        self._wait_for(list(self._threads))

    def state(self, without: Sequence[str] = ()) -> list[Any]:
        """The leaves of the state after the last iteration; for free-running fragments, after their own last one."""
        left_out = positions(self.plan.graph, without)
        states = []
        for worker in self._workers:
            program = worker.deployment.schedule.program
            leaves = worker.state_copy if self._runs_freely(worker) else worker.state()
            if self._runs_freely(worker):
                leaves = leaves | worker.live(sorted(self._in_place & set(program.state) - left_out))
            states.append((program, {i: leaf for i, leaf in leaves.items() if i not in left_out}))
        return collect(self.plan, states, [None if i in left_out else x for i, x in enumerate(self._initial)])

    def episodes(self) -> Sequence[Episodes]:
        """None: host environments are in the pool of this process."""
        return ()

    def in_flight(self) -> InFlight:
        """Values in flight to fragments that work one iteration behind; call it between two runs, like `state`."""
        return join_in_flight(self.plan, [worker.in_flight() for worker in self._workers])

    def timelines(self) -> list[WorkerTimeline]:
        """The recorded timelines of all workers, once the run has ended; empty without a window."""
        return [worker.stopwatch.timeline() for worker in self._workers if worker.stopwatch is not None]

    def close(self) -> None:
        """Wake and stop all workers."""
        self._ending.set()
        self._close_all()
        # A worker in the middle of a computation stops right after it; do not wait longer than two seconds for that.
        self._join(self._threads, 2.0)

    def __enter__(self) -> "LocalEngine":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _channel(self, capacity: int = 2) -> MemoryChannel:
        self._channels.append(MemoryChannel(capacity))
        return self._channels[-1]

    def _mailbox(self, delivery: Delivery) -> Mailbox:
        self._mailboxes.append(mailbox(delivery))
        return self._mailboxes[-1]

    def _close_all(self) -> None:
        for connection in (*self._channels, *self._mailboxes):
            connection.close()

    def _work(self, index: int, iterations: int) -> None:
        worker = self._workers[index]
        try:
            if self._runs_freely(worker):
                worker.run_freely(self._ending.is_set)
            else:
                left = iterations
                while left:
                    outcomes = worker.iterate(left)
                    left -= len(outcomes)
                    self._reports[index].send(outcomes, float("inf"))
        except ClosedError:
            pass
        except BaseException as error:
            self._fail(worker, error)

    def _fail(self, worker: Worker, error: BaseException) -> None:
        with self._lock:
            if self._failure is None:
                self._failure = worker, error
                if isinstance(error, DeadlineError):
                    print(all_stacks(), file=sys.stderr)
        self._close_all()

    def _runs_freely(self, worker: Worker) -> bool:
        return worker.deployment.schedule.program.fragment.name in self.plan.free_running

    def _report(self, iteration: int) -> IterationReport:
        outcomes: list[Outcome] = []
        for worker, reports, reported in zip(self._workers, self._reports, self._reported, strict=True):
            if self._runs_freely(worker):
                continue
            try:
                if not reported:
                    reported.extend(reports.recv(self.deadline * 2))
                outcomes.append(reported.popleft())
            except ClosedError:
                self._raise_failure()
            except TimeoutError:
                print(all_stacks(), file=sys.stderr)
                late = f"{worker.name} did not finish iteration {iteration} within {self.deadline * 2:g} s"
                raise DeadlineError(late) from None
        busy = [(worker.deployment.schedule.program.fragment.name, worker.times.share) for worker in self._workers]
        fill = {pair: max(channel.fill() for channel in channels) for pair, channels in self._between.items()}
        return report(self.plan, iteration, outcomes, busy, fill)

    def _raise_failure(self) -> None:
        if self._failure is None:
            raise RuntimeError("the engine was closed while it ran")
        worker, error = self._failure
        program = worker.deployment.schedule.program
        which = f"replica {worker.replica} of {program.replicas}" if program.replicas > 1 else "its only replica"
        error.add_note(f"raised in fragment '{program.fragment.name}', {which}")
        raise error

    def _wait_for(self, workers: list[int]) -> None:
        """Wait until these workers have ended; raises the error of any that failed."""
        self._join(workers, self.deadline)
        late = [self._threads[i].name for i in workers if self._threads[i].is_alive()]
        if late:
            raise DeadlineError(f"{', '.join(late)} did not end within {self.deadline:g} s after the last iteration")
        if self._failure is not None:
            self._raise_failure()

    def _join(self, workers: Iterable[int], seconds: float) -> None:
        end = time.monotonic() + seconds
        for index in workers:
            self._threads[index].join(max(0.0, end - time.monotonic()))


def all_stacks() -> str:
    """The current stack traces of all threads."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = ["stacks of all threads:"]
    for ident, frame in sys._current_frames().items():
        parts.append(f"--- {names.get(ident, ident)}")
        parts += [line.rstrip() for line in traceback.format_stack(frame)]
    return "\n".join(parts)
