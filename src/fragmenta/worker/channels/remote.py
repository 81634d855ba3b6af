"""Channels and mailboxes between processes, over pipes."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fragmenta.worker.channels.mailbox import AnyMailbox, Bundle, LatestMailbox
from fragmenta.worker.channels.memory import ClosedError
from fragmenta.worker.channels.pipe import Pipe
from fragmenta.worker.channels.wire import WireError, pack, packed_size, unpack

Key = tuple[int, str]
"""Identifies a value in a bundle: its id in the graph, and its consumer."""
FOREVER = float("inf")
LOOK_SECONDS = 0.2
"""How often a pump that waits for a new bundle checks whether its pipe is still open."""


class ArrayChannel:
    """A channel over a pipe: sends anything that `np.asarray` accepts, receives numpy arrays."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def send(self, value: Any, timeout: float) -> None:
        """Send a value, which must not be modified afterwards."""
        self._pipe.send(pack([np.asarray(value)]), timeout)

    def recv(self, timeout: float) -> np.ndarray:
        """The next value."""
        arrays, _ = unpack(self._pipe.recv(timeout))
        if len(arrays) != 1:
            raise WireError(f"received {len(arrays)} arrays instead of one")
        return arrays[0]

    def fill(self) -> float:
        """The fill of the pipe."""
        return self._pipe.fill()

    def close(self) -> None:
        """Close this end of the pipe."""
        self._pipe.close()


class BundleSender:
    """The producer's end of an `any` mailbox in another process: a Mailbox that supports only posting.

    Give its pipe one slot, so that a replica is at most one bundle ahead of the mailbox.
    """

    def __init__(self, pipe: Pipe, keys: Sequence[Key], must_be_fresh: bool) -> None:
        self._pipe, self._keys, self._must_be_fresh = pipe, tuple(keys), must_be_fresh
        self._ended = False

    def post(self, bundle: Bundle, timeout: float) -> None:
        """Send a bundle; if it must be fresh, wait until it is picked."""
        if self._ended:
            return
        self._pipe.send(pack_bundle(bundle, self._keys), timeout)
        if self._must_be_fresh:
            self._pipe.drain(timeout)

    def pick(self, timeout: float) -> Bundle:
        """Not supported: bundles are picked on the other side."""
        raise RuntimeError("this end of the mailbox only posts: pick bundles in the consumer's process")

    def fill(self) -> float:
        """The fill of the pipe."""
        return self._pipe.fill()

    def end(self) -> None:
        """Discard posts from now on."""
        self._ended = True

    def close(self) -> None:
        """Close this end of the pipe."""
        self._pipe.close()


class Pump:
    """A thread that moves bundles between a pipe and a mailbox until one of them is closed."""

    def __init__(self, pipe: Pipe, step: Callable[[], None], leave: Callable[[], None] = lambda: None) -> None:
        self.error: Exception | None = None
        """The exception that ended it, if any."""
        self._pipe, self._leave = pipe, leave
        self._thread = threading.Thread(target=self._run, args=(step,), name="fragmenta-pump", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """False once the pipe or the mailbox is closed, or the peer is gone."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Close the pipe, withdraw from the mailbox, and wait for the thread to end."""
        self._pipe.close()
        while self._thread.is_alive():
            self._leave()  # repeated, in case the thread was just about to wait
            self._thread.join(LOOK_SECONDS)

    def _run(self, step: Callable[[], None]) -> None:
        try:
            while True:
                step()
        except ClosedError:
            pass
        except Exception as error:
            self.error = error
        self._pipe.close()  # so that the peer does not wait forever


def pump_in(pipe: Pipe, box: AnyMailbox | LatestMailbox, keys: Sequence[Key], replica: int) -> Pump:
    """Post bundles that one producer replica sends to this process's mailbox.

    The pipe's slot is freed only after the post has succeeded, so that the producer waits as it would in this process.
    """
    keys = tuple(keys)

    def step() -> None:
        bundle = unpack_bundle(pipe.take(FOREVER), keys)
        if bundle.replica != replica:
            raise WireError(f"replica {replica} sent a bundle marked as from replica {bundle.replica}")
        box.post(bundle, FOREVER)
        pipe.free()

    return Pump(pipe, step, lambda: box.lose(replica))


def pump_out(box: LatestMailbox, pipe: Pipe, keys: Sequence[Key]) -> Pump:
    """Send the newest bundle whenever there is a new one and the last one has arrived; posting never waits."""
    keys = tuple(keys)
    last = 0

    def step() -> None:
        nonlocal last
        pipe.drain(FOREVER)  # first, so that the bundle is the newest when the consumer is ready for it
        try:
            last, bundle = box.pick_newer(last, LOOK_SECONDS)
        except TimeoutError:
            return  # the next step checks whether the pipe is still open
        pipe.send(pack_bundle(bundle, keys), FOREVER)

    return Pump(pipe, step)


def bundle_size(arrays: Sequence[tuple[np.dtype, tuple[int, ...]]]) -> int:
    """Bytes of the message of a bundle with values of these types and shapes."""
    return packed_size(arrays, numbers=3)


def channel_size(dtype: np.dtype, shape: tuple[int, ...]) -> int:
    """Bytes of the message of one value of this type and shape."""
    return packed_size([(dtype, shape)])


def pack_bundle(bundle: Bundle, keys: Sequence[Key]) -> list[bytes | memoryview]:
    """The parts of a bundle's message, with the values in the order of the keys."""
    if bundle.values.keys() != set(keys):
        raise ValueError(f"the bundle has the values {sorted(bundle.values)} instead of {sorted(keys)}")
    arrays = [np.asarray(bundle.values[key]) for key in keys]
    return pack(arrays, (bundle.version, bundle.replica, bundle.iteration))


def unpack_bundle(message: memoryview, keys: Sequence[Key]) -> Bundle:
    """The bundle in a message."""
    arrays, numbers = unpack(message)
    if len(arrays) != len(keys) or len(numbers) != 3:
        raise WireError(f"received {len(arrays)} values and {len(numbers)} integers instead of {len(keys)} and 3")
    return Bundle(dict(zip(keys, arrays, strict=True)), *numbers)
