"""The environment process: `python -m fragmenta_host.stepper DESCRIPTOR`.

It takes orders from its parent on the socket behind that descriptor, and step requests on one socket per lane. It ends
when the parent closes the socket, so it cannot outlive it.
"""

import os
import selectors
import socket
import sys
import threading
import time
from typing import Any

import numpy as np

from fragmenta_core.arrays import Description, shared_arrays
from fragmenta_core.faults import Fault, UnusableError, fault_from
from fragmenta_host.catalogue import Spec, sample, single_maker
from fragmenta_host.messages import receive, send
from fragmenta_host.priority import never_preempt
from fragmenta_host.serial import SerialEnvs, step_seconds
from fragmenta_host.single import Single

STEP, DONE, FAILED = b"s", b"k", b"f"
"""Bytes sent over a lane: request a step; step done; step done, and a message with faults follows."""


class Stepper:
    """The state of an environment process: its environments, and the lanes that request steps of them."""

    def __init__(self) -> None:
        self.sample: Single | None = None
        self.envs: SerialEnvs | None = None
        self.lanes: dict[socket.socket, tuple[int, int]] = {}

    def answer(self, order: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Execute one order and return its answer."""
        return getattr(self, "_" + order.pop("order"))(*descriptors, **order)

    def step(self, lane: socket.socket) -> None:
        """One step of a lane's environments."""
        assert self.envs is not None
        faults = self.envs.step(*self.lanes[lane])
        if not faults:
            lane.sendall(DONE)
            return
        lane.sendall(FAILED)
        send(lane, {"faults": [fault.to_json() for fault in faults]})

    def _describe(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Describe the environment, by making one."""
        try:
            env = sample(Spec.from_json(spec))
        except UnusableError as error:
            return {"unusable": str(error)}
        except Exception as error:
            return {"faults": [fault_from(0, "construction", error).to_json()]}
        self.sample = env
        return {"description": env.description.to_json()}

    def _measure(self) -> dict[str, Any]:
        """Measure the duration of one step, with random actions."""
        assert self.sample is not None
        try:
            return {"step_seconds": step_seconds(self.sample)}
        except Exception:
            return {}  # the run will fail as well, and report the step
        finally:
            self.sample.close()
            self.sample = None

    def _check(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Run the package's own checker."""
        from fragmenta_host.check import complaints

        return {"complaints": complaints(single_maker(Spec.from_json(spec))())}

    def _build(
        self, memory: int, spec: dict[str, Any], description: dict[str, Any], count: int, indices: list[int], slot: int
    ) -> dict[str, Any]:
        """Make this process's share of the environments, or those still missing."""
        if self.envs is None:
            parsed = Description.from_json(description)
            arrays = shared_arrays(parsed, count, memory)
            self.envs = SerialEnvs(single_maker(Spec.from_json(spec)), parsed, arrays, range(*indices), slot)
        os.close(memory)
        return _answer(self.envs.build())

    def _reset(self, seeds: list[int]) -> dict[str, Any]:
        assert self.envs is not None
        return _answer(self.envs.reset(np.asarray(seeds)))

    def _time(self, steps: int) -> dict[str, Any]:
        """Step all environments here, with the actions in their rows, and say how long it took."""
        assert self.envs is not None
        started = time.perf_counter()
        for _ in range(steps):
            if faults := self.envs.step(0, len(self.envs.arrays.reward)):
                return _answer(faults)
        return {"seconds": time.perf_counter() - started}

    def _forget(self) -> dict[str, Any]:
        assert self.envs is not None
        self.envs.close()
        return {}

    def _rebuild(self, index: int, seed: int) -> dict[str, Any]:
        assert self.envs is not None
        return _answer(self.envs.rebuild(index, seed))

    def _lane(self, descriptor: int, low: int, high: int) -> dict[str, Any]:
        self.lanes[socket.socket(fileno=descriptor)] = low, high
        return {}


def _answer(faults: list[Fault]) -> dict[str, Any]:
    return {"faults": [fault.to_json() for fault in faults]}


def _end_with_parent(parent: int) -> None:
    """End with the parent even if an environment hangs, so that the socket is never read."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def main() -> None:
    """Serve the parent until it is gone."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    os.nice(5)  # computing actions has priority: environments wait for them, not the other way round
    never_preempt()
    control = socket.socket(fileno=int(sys.argv[1]))
    stepper = Stepper()
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        try:
            while True:
                for ready, _ in selector.select():
                    connection = ready.fileobj
                    assert isinstance(connection, socket.socket)
                    if connection is not control:
                        if not connection.recv(1):
                            return
                        stepper.step(connection)
                        continue
                    order, descriptors = receive(control)
                    send(control, stepper.answer(order, descriptors))
                    for lane in stepper.lanes:
                        if lane not in selector.get_map():
                            selector.register(lane, selectors.EVENT_READ)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            pass
    if stepper.envs:
        stepper.envs.close()


if __name__ == "__main__":
    main()
