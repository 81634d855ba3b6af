"""A process of a sweep: trains one trial group after the other, as ordered."""

import os
import pickle
import queue
import tempfile
import threading
import traceback
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from fragmenta.engines.control import Connection
from fragmenta.engines.job import jax_settings, use_jax_settings
from fragmenta.engines.reception import arrive, pin_to_core
from fragmenta.envs import make
from fragmenta.search.alone import train_alone
from fragmenta.search.group_training import GroupResult, GroupRun, train_group
from fragmenta.search.groups import Programs, Task, TrialGroup
from fragmenta.search.messages import checkpoint_message, pack_folder, read_group, result_message
from fragmenta_core.faults import EnvironmentFaultError

SERVE = "fragmenta.search.trainer_process:serve"


def pickled_task(task: Task, pin: bool) -> bytes:
    """Everything that a process of the sweep needs; `pin` gives each process one core. The launcher passes it to the
    process as it starts it; nothing received over a connection is unpickled."""
    return cloudpickle.dumps({"task": task, "jax": jax_settings(), "pin": pin})


def serve(coordinator: tuple[str, int], token: bytes, index: int, job: bytes) -> None:
    """Connect to the sweep and train what it sends until it disconnects."""
    connection = arrive(coordinator, token, index)
    order = pickle.loads(job)
    if order["pin"]:
        pin_to_core(index)
    use_jax_settings(order["jax"])
    _TrainerProcess(connection, order["task"]).serve()


class _TrainerProcess:
    """Trains in the main thread; another one receives, so that a stop request is noticed."""

    def __init__(self, connection: Connection, task: Task) -> None:
        self._connection, self._task = connection, task
        self._orders: queue.SimpleQueue[tuple[dict[str, Any], list[np.ndarray]]] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._programs: Programs | None = None

    def serve(self) -> None:
        """Train until the sweep disconnects, which ends the process."""
        threading.Thread(target=self._receive, name="fragmenta-orders", daemon=True).start()
        while True:
            message, arrays = self._orders.get()
            try:
                self._train(*read_group(message, arrays))
            except BaseException as error:
                trace = "".join(traceback.format_exception(error))
                # For a fault of an environment, the user needs the traceback of the environment.
                trace = error.trace if isinstance(error, EnvironmentFaultError) else trace
                self._send({"report": "failed", "failed": str(error), "kind": type(error).__name__, "trace": trace})

    def _receive(self) -> None:
        while True:
            try:
                message, arrays = self._connection.receive()
            except (EOFError, ValueError):
                os._exit(1)
            if message["order"] == "stop":
                self._stop.set()
            else:
                self._orders.put((message, arrays))

    def _train(self, group: TrialGroup, saved: Any) -> None:
        if group.traced is None:
            with tempfile.TemporaryDirectory(prefix="fragmenta-") as folder:
                path = Path(folder) / "trial"
                head, _ = result_message(GroupResult([train_alone(self._task, group.proposals[0], path)], None))
                self._send({"report": "finished", **head}, [pack_folder(path)])
            return
        run = GroupRun(saved, self._save, self._stop.is_set, self._report)
        if self._programs is None:
            self._programs = Programs(self._task.algorithm, make(self._task.env, self._task.env_options))
        result = train_group(self._task, self._programs, group, run)
        if result is None:
            self._send({"report": "stopped"})
            return
        head, results = result_message(result)
        self._send({"report": "finished", **head}, results)

    def _save(self, checkpoint: Any) -> None:
        head, arrays = checkpoint_message(checkpoint)
        self._send({"report": "saved", **head}, arrays)

    def _report(self, steps: int, total: int, best: float | None) -> None:
        self._send({"report": "progress", "steps": steps, "total": total, "best": best})

    def _send(self, message: dict[str, Any], arrays: list[np.ndarray] | None = None) -> None:
        try:
            self._connection.send(message, arrays or [])
        except OSError:  # the sweep is gone
            os._exit(1)
