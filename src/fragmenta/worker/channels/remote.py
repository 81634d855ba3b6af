"""Channels and mailboxes between processes: values, and bundles of them, through pipes."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fragmenta.worker.channels.mailbox import AnyMailbox, Bundle, LatestMailbox
from fragmenta.worker.channels.memory import ClosedError
from fragmenta.worker.channels.pipe import Pipe
from fragmenta.worker.channels.wire import WireError, pack, packed_size, unpack

Key = tuple[int, str]
"""Of a value in a bundle: its number in the graph, and its consumer."""
FOREVER = float("inf")
LOOK_SECONDS = 0.2
"""How often a pump that waits for a new bundle looks whether its pipe is still open."""


class ArrayChannel:
    """A channel at one end of a pipe: whatever numpy takes for an array goes in, a numpy array comes out."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def send(self, value: Any, timeout: float) -> None:
        """Send a value, which must not change from now on."""
        self._pipe.send(pack([np.asarray(value)]), timeout)

    def recv(self, timeout: float) -> np.ndarray:
        """The next value."""
        arrays, _ = unpack(self._pipe.recv(timeout))
        if len(arrays) != 1:
            raise WireError(f"{len(arrays)} arrays came where one was expected")
        return arrays[0]

    def fill(self) -> float:
        """That of the pipe."""
        return self._pipe.fill()

    def close(self) -> None:
        """Close this end of the pipe."""
        self._pipe.close()


class BundleSender:
    """The producer's end of a mailbox for `any` that is in another process: a Mailbox that can only be posted to.

    Give its pipe one place: then a replica is at most one bundle ahead of what is in the mailbox.
    """

    def __init__(self, pipe: Pipe, keys: Sequence[Key], must_be_fresh: bool) -> None:
        self._pipe, self._keys, self._must_be_fresh = pipe, tuple(keys), must_be_fresh
        self._ended = False

    def post(self, bundle: Bundle, timeout: float) -> None:
        """Send a bundle, and where it must be fresh, wait until it was picked."""
        if self._ended:
            return
        self._pipe.send(pack_bundle(bundle, self._keys), timeout)
        if self._must_be_fresh:
            self._pipe.drain(timeout)

    def pick(self, timeout: float) -> Bundle:
        """Refused: bundles are picked on the other side."""
        raise RuntimeError("bundles that were sent away cannot be picked here")

    def fill(self) -> float:
        """That of the pipe."""
        return self._pipe.fill()

    def end(self) -> None:
        """Post nothing from now on."""
        self._ended = True

    def close(self) -> None:
        """Close this end of the pipe."""
        self._pipe.close()


class Pump:
    """A thread that moves bundles between a pipe and a mailbox until one of them is closed."""

    def __init__(self, pipe: Pipe, step: Callable[[], None], leave: Callable[[], None] = lambda: None) -> None:
        self.error: Exception | None = None
        """What ended it, if that was neither of the two."""
        self._pipe, self._leave = pipe, leave
        self._thread = threading.Thread(target=self._run, args=(step,), name="fragmenta-pump", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """False once the pipe or the mailbox is closed, or the peer is gone."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Close the pipe, leave the mailbox to others, and wait for the thread to end."""
        self._pipe.close()
        while self._thread.is_alive():
            self._leave()  # again, in case it was only about to wait
            self._thread.join(LOOK_SECONDS)

    def _run(self, step: Callable[[], None]) -> None:
        try:
            while True:
                step()
        except ClosedError:
            pass
        except Exception as error:
            self.error = error
        self._pipe.close()  # so that the peer does not wait for us


def pump_in(pipe: Pipe, box: AnyMailbox | LatestMailbox, keys: Sequence[Key], replica: int) -> Pump:
    """Post what one producer replica sends to the mailbox of this process.

    A place of the pipe is free again once the post went through, so that the producer waits as it would here.
    """
    keys = tuple(keys)

    def step() -> None:
        bundle = unpack_bundle(pipe.take(FOREVER), keys)
        if bundle.replica != replica:
            raise WireError(f"replica {replica} sent a bundle that says it is from replica {bundle.replica}")
        box.post(bundle, FOREVER)
        pipe.free()

    return Pump(pipe, step, lambda: box.lose(replica))


def pump_out(box: LatestMailbox, pipe: Pipe, keys: Sequence[Key]) -> Pump:
    """Send the newest bundle whenever there is a new one and the last has arrived; who posts never waits."""
    keys = tuple(keys)
    seen = 0

    def step() -> None:
        nonlocal seen
        pipe.drain(FOREVER)  # first, so that what is sent is the newest at the time when it is wanted
        try:
            seen, bundle = box.pick_newer(seen, LOOK_SECONDS)
        except TimeoutError:
            return  # to see whether the pipe is still open
        pipe.send(pack_bundle(bundle, keys), FOREVER)

    return Pump(pipe, step)


def bundle_size(arrays: Sequence[tuple[np.dtype, tuple[int, ...]]]) -> int:
    """Bytes of a bundle's message with values of such types and shapes."""
    return packed_size(arrays, numbers=3)


def channel_size(dtype: np.dtype, shape: tuple[int, ...]) -> int:
    """Bytes of the message with one value of that type and shape."""
    return packed_size([(dtype, shape)])


def pack_bundle(bundle: Bundle, keys: Sequence[Key]) -> list[bytes | memoryview]:
    """The parts of a message with a bundle, whose values go in the order of the keys."""
    if bundle.values.keys() != set(keys):
        raise ValueError(f"the bundle has the values {sorted(bundle.values)}, and {sorted(keys)} were agreed on")
    arrays = [np.asarray(bundle.values[key]) for key in keys]
    return pack(arrays, (bundle.version, bundle.replica, bundle.iteration))


def unpack_bundle(message: memoryview, keys: Sequence[Key]) -> Bundle:
    """The bundle in a message."""
    arrays, numbers = unpack(message)
    if len(arrays) != len(keys) or len(numbers) != 3:
        raise WireError(f"{len(arrays)} values and {len(numbers)} numbers came instead of {len(keys)} and 3")
    return Bundle(dict(zip(keys, arrays, strict=True)), *numbers)
