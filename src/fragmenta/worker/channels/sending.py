"""The sending ends of pipes: values, and bundles of values, as messages to another process."""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from fragmenta.worker.channels.mailbox import Bundle, LatestMailbox
from fragmenta.worker.channels.pipe import FOREVER, LOOK_SECONDS, Pipe, Pump
from fragmenta.worker.channels.wire import Key, WireError, describe


class ArraySender:
    """Sends anything that `np.asarray` accepts."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def send(self, value: Any, timeout: float) -> None:
        """Send a value, which must not be modified afterwards."""
        self._pipe.send(pack([np.asarray(value)]), timeout)

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


def pack_bundle(bundle: Bundle, keys: Sequence[Key]) -> list[bytes | memoryview]:
    """The parts of a bundle's message, with the values in the order of the keys."""
    if bundle.values.keys() != set(keys):
        raise ValueError(f"the bundle has the values {sorted(bundle.values)} instead of {sorted(keys)}")
    arrays = [np.asarray(bundle.values[key]) for key in keys]
    return pack(arrays, (bundle.version, bundle.replica, bundle.iteration))


def pack(arrays: Sequence[np.ndarray], numbers: Sequence[int] = ()) -> list[bytes | memoryview]:
    """The parts of a message: a header, then the arrays' memory (copied only if not contiguous)."""
    head, descriptions, offsets = describe(len(numbers), *[(array.dtype, array.shape) for array in arrays])
    if numbers:
        try:
            head += struct.pack(f"<{len(numbers)}q", *numbers)
        except struct.error:
            raise WireError(f"integers beyond 64 bits cannot be sent: {list(numbers)}") from None
    parts: list[bytes | memoryview] = [head + descriptions]
    end = len(parts[0])
    for array, offset in zip(arrays, offsets, strict=True):
        if array.nbytes:
            if end != offset:
                parts.append(bytes(offset - end))
            contiguous = array if array.flags.c_contiguous else np.ascontiguousarray(array)
            parts.append(contiguous.reshape(-1).view(np.uint8).data)
            end = offset + array.nbytes
    return parts
