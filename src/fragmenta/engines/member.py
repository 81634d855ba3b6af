"""A process of a cluster engine: rebuilds the plan, compiles its fragment, and executes orders."""

import contextlib
import os
import pickle
import queue
import socket
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from fragmenta.engines.control import Connection
from fragmenta.engines.reception import arrive, pin_to_core
from fragmenta.worker.channels.memory import ClosedError
from fragmenta_core.faults import EnvironmentFaultError


def serve(coordinator: tuple[str, int], token: bytes, index: int, job: bytes) -> None:
    """Connect to the coordinator and execute its orders until it disconnects."""
    connection = arrive(coordinator, token, index)
    Member(connection, token, index, job).serve()


class Member:
    """One replica's process. Most orders are executed in the main thread, one after the other.

    One thread receives them, and another only sends heartbeats: whatever the process waits for, it does not count as
    stuck.
    """

    def __init__(self, connection: Connection, token: bytes, index: int, job: bytes) -> None:
        self._connection, self._token, self._index, self._job = connection, token, index, job
        self._orders: queue.SimpleQueue[tuple[dict[str, Any], list[np.ndarray]] | None] = queue.SimpleQueue()
        self._replica: Any = None
        self._running_freely = False
        self._order: int | None = None
        """The number of the order that the main thread executes."""

    def serve(self) -> None:
        """Execute orders until the coordinator disconnects."""
        threading.Thread(target=self._receive_orders, name="fragmenta-hears", daemon=True).start()
        while (order := self._orders.get()) is not None:
            self._order = order[0]["number"]
            self._execute(*order)
            self._order = None
        if self._replica is not None:
            self._replica.close()

    def _receive_orders(self) -> None:
        while True:
            try:
                message, arrays = self._connection.receive()
            except (EOFError, ValueError):
                break
            order = message["order"]
            if order == "live":
                self._in_a_thread(self._live, message["every"])
            elif order in ("stop", "end"):
                if self._replica is not None:  # else nothing is waiting
                    getattr(self._replica, order)()
            elif order == "connect":
                # A replica on the other side may be replaced while the main thread trains. It may be slow to answer,
                # and this thread must still receive a stop.
                assert self._replica is not None, "connect is only sent after prepare"
                self._in_a_thread(self._execute, message, arrays, self._replica.connecting(message["addresses"]))
            elif order == "open" or (order == "state" and self._running_freely):
                self._execute(message, arrays)
            else:
                self._orders.put((message, arrays))
        self._orders.put(None)
        if self._replica is not None:
            self._replica.stop()
        time.sleep(2.0)  # the main thread may finish by itself; if not, nobody needs its result
        os._exit(1)

    def _in_a_thread(self, do: Callable[..., None], *arguments: Any) -> None:
        threading.Thread(
            target=do, args=arguments, name="fragmenta" + do.__name__.replace("_", "-"), daemon=True
        ).start()

    def _live(self, every: float) -> None:
        while True:
            self._send({"doing": self._replica.doing() if self._replica else "starts"})
            fault = self._replica.hanging() if self._replica else None
            if fault and self._order is not None:
                self._send({"answers": self._order, **_failure(fault)})  # the main thread will not answer
            time.sleep(every)

    def _execute(
        self, message: dict[str, Any], arrays: list[np.ndarray], connect: Callable[[], str | None] | None = None
    ) -> None:
        number = message["number"]
        try:
            if connect is not None:
                answer, results = {"unreached": connect()}, []
            else:
                answer, results = getattr(self, f"_do_{message['order']}")(message, arrays) or ({}, [])
        except ClosedError:
            answer, results = {"stopped": True}, []
        except BaseException as error:
            answer, results = _failure(self._replica.cause(error) if self._replica else error), []
        self._send({"answers": number, **answer}, results)

    def _send(self, message: dict[str, Any], arrays: Any = ()) -> None:
        with contextlib.suppress(OSError):  # if the coordinator is gone, `_receive_orders` notices
            self._connection.send(message, arrays)

    def _do_lead(self, message: dict[str, Any], _: list[np.ndarray]) -> Any:
        with socket.socket() as probe:
            probe.bind((self._connection.address, 0))
            return {"coordinator": f"{self._connection.address}:{probe.getsockname()[1]}"}, []

    def _do_prepare(self, message: dict[str, Any], _: list[np.ndarray]) -> Any:
        group = message["group"]
        if group is not None:
            from fragmenta.worker.backends.distributed import join

            address = self._connection.address
            join(group["coordinator"], group["coordinator"], group["count"], group["index"], address)
        # Not earlier: joining the group must precede any JAX computation.
        from fragmenta.engines.replica import ReplicaProcess

        # Acting is a small program between two environment steps. Unpinned, its threads wait until the environments of
        # other processes leave them a core, which takes longer than the computation.
        if message["core"] is not None:
            pin_to_core(message["core"])
        job = pickle.loads(self._job)
        self._replica = ReplicaProcess(job, self._index, self._connection.address, self._token, message["cores"])
        replica = self._replica
        return {"device": replica.device, "plan": replica.fingerprint, "holds_up": replica.env_steps_block}, []

    def _do_open(self, message: dict[str, Any], _: list[np.ndarray]) -> Any:
        return {"addresses": self._replica.open(message["routes"])}, []

    def _do_reset(self, _: dict[str, Any], arrays: list[np.ndarray]) -> Any:
        return {}, self._replica.reset(arrays[0])

    def _do_load(self, message: dict[str, Any], arrays: list[np.ndarray]) -> None:
        names, late = message["leaves"], message["in_flight"]
        leaves, in_flight = dict(zip(names, arrays, strict=False)), dict(zip(late, arrays[len(names) :], strict=True))
        for leaf, shape in message["constants"]:
            leaves[leaf] = np.broadcast_to(leaves[leaf], shape)
        self._replica.load(leaves, in_flight, message["kept"], message["empty"], message["in_place"])

    def _do_held(self, message: dict[str, Any], _: list[np.ndarray]) -> Any:
        return {"held": self._replica.held(message["leaves"])}, []

    def _do_run(self, message: dict[str, Any], _: list[np.ndarray]) -> None:
        for report, metrics in self._replica.run(message["iterations"]):
            self._send({"report": message["number"], **report}, metrics)

    def _do_run_freely(self, _: dict[str, Any], __: list[np.ndarray]) -> None:
        self._running_freely = True
        try:
            self._replica.run_freely()
        finally:
            self._running_freely = False

    def _do_state(self, message: dict[str, Any], _: list[np.ndarray]) -> Any:
        leaves, late = self._replica.state(message["without"]), self._replica.in_flight()
        named = [(value, consumer, len(parts)) for (value, consumer), parts in late.items()]
        arrays = [*leaves.values(), *(np.asarray(part) for parts in late.values() for part in parts)]
        restarts = self._replica.env_restarts
        return {"leaves": list(leaves), "in_flight": named, "env_restarts": restarts}, arrays

    def _do_episodes(self, _: dict[str, Any], __: list[np.ndarray]) -> Any:
        return {}, [np.frombuffer(pickle.dumps(self._replica.episodes()), np.uint8)]

    def _do_rest(self, _: dict[str, Any], __: list[np.ndarray]) -> None:
        """The answer itself means that the main thread is idle."""

    def _do_timeline(self, _: dict[str, Any], __: list[np.ndarray]) -> Any:
        return {"timeline": self._replica.timeline(), "clock": time.monotonic()}, []


def _failure(error: BaseException) -> dict[str, str]:
    local_trace = "".join(traceback.format_exception(error))
    # For a fault of an environment, the user needs the traceback of the environment.
    trace = error.trace if isinstance(error, EnvironmentFaultError) else local_trace
    return {"failed": str(error), "kind": type(error).__name__, "trace": trace}
