"""The receiving ends of pipes. What another process sends is not trusted: every byte of a header is checked."""

import functools
import math
import struct
from collections.abc import Sequence

import numpy as np

from fragmenta.worker.channels.mailbox import AnyMailbox, Bundle, LatestMailbox
from fragmenta.worker.channels.pipe import FOREVER, Pipe, Pump
from fragmenta.worker.channels.wire import (
    ALIGNED,
    ARRAY,
    HEAD,
    MAGIC,
    MOST_ARRAYS,
    MOST_DIMENSIONS,
    MOST_NUMBERS,
    TYPES,
    Key,
    WireError,
    aligned,
)

_MOST_ITEMS = 2**48
_MOST_DESCRIPTION = MOST_ARRAYS * (2 + 8 * MOST_DIMENSIONS) + ALIGNED
_MOST_CACHED = 4096
_Layout = tuple[tuple[np.dtype, tuple[int, ...], int], ...]
"""Type, shape and offset of each array."""


class ArrayReceiver:
    """Receives values as numpy arrays."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

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


def unpack_bundle(message: memoryview, keys: Sequence[Key]) -> Bundle:
    """The bundle in a message."""
    arrays, numbers = unpack(message)
    if len(arrays) != len(keys) or len(numbers) != 3:
        raise WireError(f"received {len(arrays)} values and {len(numbers)} integers instead of {len(keys)} and 3")
    return Bundle(dict(zip(keys, arrays, strict=True)), *numbers)


def unpack(buffer: bytes | bytearray | memoryview) -> tuple[list[np.ndarray], list[int]]:
    """The arrays, as views of the buffer, and the integers of a message."""
    try:
        magic, arrays, count, description_size, length = HEAD.unpack_from(buffer)
        if magic != MAGIC:
            raise WireError(f"starts with {magic!r}, not {MAGIC!r}: not a message, or another version of the format")
        if length != len(buffer):
            raise WireError(f"declares {length} bytes, but has {len(buffer)}")
        if count > MOST_NUMBERS:
            raise WireError(f"declares {count} integers: at most {MOST_NUMBERS} are allowed")
        numbers = list(struct.unpack_from(f"<{count}q", buffer, HEAD.size)) if count else []
    except struct.error:
        raise WireError(f"ends within its header, after {len(buffer)} bytes") from None
    offset = HEAD.size + 8 * count
    # Long descriptions are not cached, so that a peer cannot fill our memory with them.
    lay_out = _layout if description_size <= _MOST_CACHED else _layout.__wrapped__
    layout = lay_out(arrays, offset, length, bytes(buffer[offset : offset + min(description_size, _MOST_DESCRIPTION)]))
    return [np.ndarray(shape, kind, buffer, offset) for kind, shape, offset in layout], numbers


@functools.lru_cache(maxsize=1024)
def _layout(arrays: int, start: int, length: int, descriptions: bytes) -> _Layout:
    """Where the arrays are in a message of `length` bytes; `start` bytes precede their descriptions."""
    if arrays > MOST_ARRAYS:
        raise WireError(f"declares {arrays} arrays: at most {MOST_ARRAYS} are allowed")
    signatures, offset = [], 0
    try:
        for _ in range(arrays):
            code, dimensions = ARRAY.unpack_from(descriptions, offset)
            if code >= len(TYPES) or dimensions > MOST_DIMENSIONS:
                raise WireError(f"an array of type {code} with {dimensions} dimensions is not supported")
            signatures.append((TYPES[code], struct.unpack_from(f"<{dimensions}Q", descriptions, offset + ARRAY.size)))
            offset += ARRAY.size + 8 * dimensions
    except struct.error:
        raise WireError(
            f"ends within the descriptions of its arrays, after {len(descriptions)} bytes of them"
        ) from None
    end = start + len(descriptions)
    if end % ALIGNED or len(descriptions) - offset >= ALIGNED:
        raise WireError(f"describes {arrays} arrays in {len(descriptions)} bytes, but they take {offset}")
    layout = []
    for kind, shape in signatures:
        if math.prod(max(size, 1) for size in shape) > _MOST_ITEMS:
            raise WireError(f"an array of implausible shape {shape}")
        size = math.prod(shape) * kind.itemsize
        offset = aligned(end) if size else 0
        end = offset + size if size else end
        layout.append((kind, shape, offset))
    if end != length:
        raise WireError(f"has {length} bytes, but its arrays end at {end}")
    return tuple(layout)
