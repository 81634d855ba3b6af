"""A process that steps environments: `python -m fragmenta_host.stepper DESCRIPTOR`.

It takes orders from its parent on the socket behind that descriptor, and a step of some of its environments on one
socket per lane. It ends when the parent closes the socket, so it cannot outlive it.
"""

import os
import selectors
import socket
import sys
import threading
import time
from typing import Any

import numpy as np

from fragmenta_core.arrays import Description, shared
from fragmenta_core.faults import Fault, UnusableError, raised
from fragmenta_host.catalogue import Spec, single_maker
from fragmenta_host.messages import receive, send
from fragmenta_host.priority import never_preempt
from fragmenta_host.serial import SerialEnvs, step_seconds
from fragmenta_host.single import Single

STEP, DONE, FAILED = b"s", b"k", b"f"
"""What goes over a lane: do a step; done; done, but a message with faults follows."""


class Stepper:
    """What a worker holds: its environments, and the lanes on which steps of them are asked for."""

    def __init__(self) -> None:
        self.sample: Single | None = None
        self.group: SerialEnvs | None = None
        self.lanes: dict[socket.socket, tuple[int, int]] = {}

    def answer(self, order: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Carry out one order."""
        return getattr(self, "_" + order.pop("order"))(*descriptors, **order)

    def step(self, lane: socket.socket) -> None:
        """One step of a lane's environments."""
        assert self.group is not None
        faults = self.group.step(*self.lanes[lane])
        if not faults:
            lane.sendall(DONE)
            return
        lane.sendall(FAILED)
        send(lane, {"faults": [fault.to_json() for fault in faults]})

    def _describe(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Say what the environment is; make one to find out."""
        try:
            env = single_maker(Spec(**spec))()
        except UnusableError as error:
            return {"unusable": str(error)}
        except Exception as error:
            return {"faults": [raised(0, "construction", error).to_json()]}
        self.sample = env
        return {"description": env.description.to_json()}

    def _measure(self) -> dict[str, Any]:
        """How long one step takes, with random actions."""
        assert self.sample is not None
        try:
            return {"step_seconds": step_seconds(self.sample)}
        except Exception:
            return {}  # the run will see it, too, and say which step it was
        finally:
            self.sample.close()
            self.sample = None

    def _check(self, spec: dict[str, Any]) -> dict[str, Any]:
        """What the package's own checker says."""
        from fragmenta_host.check import complaints

        return {"complaints": complaints(single_maker(Spec(**spec))())}

    def _modules(self) -> dict[str, Any]:
        """What this process has loaded; for tests, because it must never be JAX."""
        return {"modules": sorted(sys.modules)}

    def _build(
        self, memory: int, spec: dict[str, Any], description: dict[str, Any], count: int, indices: list[int], slot: int
    ) -> dict[str, Any]:
        """Make this worker's share of the environments, or those of it that are not there yet."""
        if self.group is None:
            found = Description.from_json(description)
            arrays = shared(found, count, memory)
            self.group = SerialEnvs(single_maker(Spec(**spec)), found, arrays, range(*indices), slot)
        os.close(memory)
        return _answer(self.group.build())

    def _reset(self, seeds: list[int]) -> dict[str, Any]:
        assert self.group is not None
        return _answer(self.group.reset(np.asarray(seeds)))

    def _rebuild(self, index: int, seed: int) -> dict[str, Any]:
        assert self.group is not None
        return _answer(self.group.rebuild(index, seed))

    def _lane(self, descriptor: int, low: int, high: int) -> dict[str, Any]:
        self.lanes[socket.socket(fileno=descriptor)] = low, high
        return {}


def _answer(faults: list[Fault]) -> dict[str, Any]:
    return {"faults": [fault.to_json() for fault in faults]}


def _end_with_parent(parent: int) -> None:
    """An environment that loops for ever never looks at the socket; its process must end all the same."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def main() -> None:
    """Serve the parent until it is gone."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    os.nice(5)  # whoever computes actions goes first: environments wait for them, not the other way round
    never_preempt()
    control = socket.socket(fileno=int(sys.argv[1]))
    worker = Stepper()
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        try:
            while True:
                for ready, _ in selector.select():
                    found = ready.fileobj
                    assert isinstance(found, socket.socket)
                    if found is not control:
                        if not found.recv(1):
                            return
                        worker.step(found)
                        continue
                    order, descriptors = receive(control)
                    send(control, worker.answer(order, descriptors))
                    for lane in worker.lanes:
                        if lane not in selector.get_map():
                            selector.register(lane, selectors.EVENT_READ)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            pass
    if worker.group:
        worker.group.close()


if __name__ == "__main__":
    main()
