"""Train the groups of a sweep in several processes, on this machine or on a Ray cluster."""

import collections
import queue
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from fragmenta.engines.base import EngineOptions
from fragmenta.engines.control import Connection, FailedError, Inbox, LostError, Peer
from fragmenta.engines.errors import user_error
from fragmenta.engines.kinds import Launch, engine_named
from fragmenta.engines.reception import Reception
from fragmenta.search.group_training import GroupResult, OnProgress
from fragmenta.search.groups import Task, TrialGroup
from fragmenta.search.in_process import SweepFolder
from fragmenta.search.messages import group_message, read_checkpoint, read_result, unpack_folder
from fragmenta.search.trainer_process import SERVE, pickled_task
from fragmenta_host.options import cores

POLL_SECONDS = 0.2
"""How often to check for a stop request and for processes that have ended."""
EXIT_SECONDS = 1.0
"""How long to wait for the exit status of a process that disconnected."""


def default_jobs(engine: str, options: EngineOptions) -> int:
    """How many groups are trained at the same time: one per core or GPU of a cluster; one per core of this machine,
    but only one if JAX has an accelerator, which one program keeps busy."""
    if elsewhere := engine_named(engine).cluster_slots(options):
        return max(1, elsewhere[1])
    return cores() if jax.default_backend() == "cpu" else 1


class SweepProcesses:
    """Processes that train groups; each is started when there is something for it to do, and replaced if it is lost."""

    def __init__(self, task: Task, folder: SweepFolder, engine: str, options: EngineOptions, count: int) -> None:
        kind = engine_named(engine)
        assert kind.launcher is not None, "JobOptions.check"
        self._folder, self._options, self.processes = folder, options, count
        self._names = [f"trials-{i}" for i in range(count)]
        elsewhere = kind.cluster_slots(options)
        need = {"CPU": 1.0, "GPU": 1.0} if elsewhere and elsewhere[0] == "gpu" else {"CPU": 1.0}
        self._job = pickled_task(task, pin=elsewhere is None and count == cores())
        self._launcher = kind.launcher(Launch(self._names, [need] * count, SERVE), options)
        self._inbox: Inbox = queue.SimpleQueue()
        self._peers: dict[int, Peer] = {}
        self._trains: dict[int, TrialGroup] = {}
        """What each busy process trains."""
        self._restarts, self._closed = 0, False
        self._reception = Reception(self._launcher.address, count, self._arrived)

    def train(
        self, groups: Sequence[TrialGroup], stop: Callable[[], bool], report: OnProgress
    ) -> Iterator[GroupResult]:
        """Train groups, several at the same time, and yield the result of each that was not stopped."""
        waiting, is_stopping = collections.deque(groups), False
        progress: dict[int, dict[str, Any]] = {}
        while self._trains or (waiting and not is_stopping):
            if stop() and not is_stopping:
                is_stopping = True
                self._stop()
            for i in range(self.processes):
                if waiting and not is_stopping and i not in self._trains:
                    self._begin(i, waiting.popleft())
            for peer, message, arrays in self._messages():
                i = peer.index
                if self._peers.get(i) is not peer or i not in self._trains:
                    continue  # of a process that was replaced
                if message is None:
                    self._replace(i, LostError(f"{peer.name} {peer.lost}"), is_stopping)
                elif message["report"] == "failed":
                    self._replace(i, peer.failure(message), is_stopping)
                elif message["report"] == "saved":
                    self._folder.checkpoints(self._trains[i]).save(read_checkpoint(message, arrays))
                elif message["report"] == "progress":
                    progress[i] = message
                    running = [progress[j] for j in self._trains if j in progress]
                    best = max((p["best"] for p in running if p["best"] is not None), default=None)
                    report(min(p["steps"] for p in running), message["total"], best)
                else:
                    group = self._trains.pop(i)
                    progress.pop(i, None)
                    if message["report"] == "finished":
                        yield self._result(group, message, arrays)

    def close(self) -> None:
        """Terminate all processes."""
        self._closed = True
        for peer in self._peers.values():
            peer.lose("was terminated")
        self._reception.close()
        self._launcher.close()
        for peer in self._peers.values():
            peer.forget()

    def _result(self, group: TrialGroup, message: dict[str, Any], arrays: list[np.ndarray]) -> GroupResult:
        if group.traced is None:
            (packed,) = arrays
            unpack_folder(packed, self._folder.runs(group.proposals[0].number))
            return read_result(message, [])
        return read_result(message, arrays)

    def _begin(self, i: int, group: TrialGroup) -> None:
        self._trains[i] = group
        if i in self._peers and not self._peers[i].lost:
            self._order(i)
        else:
            self._launcher.start(i, self._job, self._reception.address, self._reception.token)

    def _order(self, i: int) -> None:
        message, arrays = group_message(self._trains[i], self._folder.saved(self._trains[i]))
        self._peers[i].tell("train", arrays, **message)

    def _arrived(self, index: int, connection: Connection, hello: dict[str, Any]) -> None:
        peer = Peer(index, self._names[index], connection, hello, self._inbox, lambda: self._how_it_ended(index))
        self._inbox.put((peer, {"report": "ready"}, []))

    def _messages(self) -> Iterator[tuple[Peer, dict[str, Any] | None, list[np.ndarray]]]:
        """The next message of a process, unless none arrives in a while; also handles processes that connect or end."""
        for i in list(self._trains):
            if how := self._launcher.ended(i):
                if i in self._peers:
                    self._peers[i].lose(how)
                else:
                    self._replace(i, LostError(f"{self._names[i]} {how}"), False)
        try:
            peer, message, arrays = self._inbox.get(timeout=POLL_SECONDS)
        except queue.Empty:
            return
        if message is not None and message["report"] == "ready":
            self._peers[peer.index] = peer
            if peer.index in self._trains:  # else it was stopped before it was ready
                self._order(peer.index)
            return
        yield peer, message, arrays

    def _stop(self) -> None:
        """Let the processes save what they train; ordinary runs and processes that have not begun are ended."""
        for i, group in list(self._trains.items()):
            if i in self._peers and group.traced is not None:
                self._peers[i].tell("stop")
            else:
                del self._trains[i]
                self._end(i)

    def _replace(self, i: int, failure: LostError | FailedError, is_stopping: bool) -> None:
        """Start another process for a lost one, within the budget; it continues from the checkpoint of its group."""
        group = self._trains.pop(i)
        self._end(i)
        if is_stopping:
            return
        budget = self._options.restarts
        if isinstance(failure, FailedError) or self._restarts >= budget:
            raise user_error(failure)
        self._restarts += 1
        print(f"fragmenta: {failure}; replaced ({self._restarts} of {budget})", file=sys.stderr, flush=True)
        self._begin(i, group)

    def _end(self, i: int) -> None:
        if peer := self._peers.pop(i, None):
            peer.lose("was terminated")
        self._launcher.kill(i)

    def _how_it_ended(self, i: int) -> str:
        end = time.monotonic() + EXIT_SECONDS
        while not self._closed and time.monotonic() < end:
            if how := self._launcher.ended(i):
                return how
            time.sleep(0.02)
        return "closed its connection"
