"""Arrays and numbers as a header and raw bytes. Nothing that a peer sent is trusted: what does not fit is refused."""

import functools
import math
import struct
from collections.abc import Sequence

import ml_dtypes
import numpy as np

Buffer = bytes | bytearray | memoryview

ALIGNED = 64
"""Arrays begin at multiples of this, so that a buffer that does so too can be used where it lies."""
MOST_ARRAYS = MOST_NUMBERS = 4096
MOST_DIMENSIONS = 32
_MOST_ITEMS = 2**48
_MOST_DESCRIBED = MOST_ARRAYS * (2 + 8 * MOST_DIMENSIONS) + ALIGNED
_MOST_KEPT = 4096
_TYPES = tuple(
    np.dtype(kind)
    for kind in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", ml_dtypes.bfloat16, "complex64", "complex128"),
    )
)
_CODES = {kind: code for code, kind in enumerate(_TYPES)}
_HEAD = struct.Struct("<4sHHIQ")
"""Magic, arrays, numbers, bytes that describe the arrays, bytes in all; then the numbers, then the descriptions."""
_MAGIC = b"FRG\x01"
"""The last byte is the version of the format."""
_ARRAY = struct.Struct("<BB")
_Layout = tuple[tuple[np.dtype, tuple[int, ...], int], ...]
"""Type, shape and place of each array."""


class WireError(ValueError):
    """Bytes that are no message, or a value that cannot be one; says what is wrong."""


def pack(arrays: Sequence[np.ndarray], numbers: Sequence[int] = ()) -> list[bytes | memoryview]:
    """The parts of a message: a header, then the arrays' own memory (copied only where it is not contiguous)."""
    head, described, places = _described(len(numbers), *[(array.dtype, array.shape) for array in arrays])
    if numbers:
        try:
            head += struct.pack(f"<{len(numbers)}q", *numbers)
        except struct.error:
            raise WireError(f"numbers beyond 64 bits cannot be sent: {list(numbers)}") from None
    parts: list[bytes | memoryview] = [head + described]
    end = len(parts[0])
    for array, place in zip(arrays, places, strict=True):
        if array.nbytes:
            if end != place:
                parts.append(bytes(place - end))
            contiguous = array if array.flags.c_contiguous else np.ascontiguousarray(array)
            parts.append(contiguous.reshape(-1).view(np.uint8).data)
            end = place + array.nbytes
    return parts


def packed_size(arrays: Sequence[tuple[np.dtype, tuple[int, ...]]], numbers: int = 0) -> int:
    """Bytes of a message with arrays of such types and shapes, and so many numbers: what a pipe must take."""
    head, _, _ = _described(numbers, *arrays)
    return _HEAD.unpack(head)[-1]


@functools.lru_cache(maxsize=1024)
def _described(numbers: int, *arrays: tuple[np.dtype, tuple[int, ...]]) -> tuple[bytes, bytes, tuple[int, ...]]:
    """What is sent before and after the numbers, and where each array begins."""
    if len(arrays) > MOST_ARRAYS or numbers > MOST_NUMBERS:
        raise WireError(f"{len(arrays)} arrays and {numbers} numbers: {MOST_ARRAYS} of each fit in a message")
    described = b""
    for kind, shape in arrays:
        if kind not in _CODES:
            raise WireError(f"arrays of type {kind} cannot be sent: use {', '.join(map(str, _TYPES))}")
        if len(shape) > MOST_DIMENSIONS:
            raise WireError(f"an array of {len(shape)} dimensions: {MOST_DIMENSIONS} can be sent")
        described += _ARRAY.pack(_CODES[kind], len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
    described += bytes(-(_HEAD.size + 8 * numbers + len(described)) % ALIGNED)
    end = _HEAD.size + 8 * numbers + len(described)
    places = []
    for kind, shape in arrays:
        places.append(_aligned(end))
        if size := math.prod(shape) * kind.itemsize:
            end = places[-1] + size
    return _HEAD.pack(_MAGIC, len(arrays), numbers, len(described), end), described, tuple(places)


def unpack(buffer: Buffer) -> tuple[list[np.ndarray], list[int]]:
    """The arrays, as views on the buffer, and the numbers of a message."""
    try:
        magic, arrays, count, described, length = _HEAD.unpack_from(buffer)
        if magic != _MAGIC:
            raise WireError(f"begins with {magic!r}, not with {_MAGIC!r}: no message, or one of another version")
        if length != len(buffer):
            raise WireError(f"says it has {length} bytes, and has {len(buffer)}")
        if count > MOST_NUMBERS:
            raise WireError(f"says it has {count} numbers: at most {MOST_NUMBERS} may come")
        numbers = list(struct.unpack_from(f"<{count}q", buffer, _HEAD.size)) if count else []
    except struct.error:
        raise WireError(f"ends within its header, after {len(buffer)} bytes") from None
    place = _HEAD.size + 8 * count
    # Long ones are not kept, so that nobody can fill our memory with them.
    lay_out = _layout if described <= _MOST_KEPT else _layout.__wrapped__
    layout = lay_out(arrays, place, length, bytes(buffer[place : place + min(described, _MOST_DESCRIBED)]))
    return [np.ndarray(shape, kind, buffer, place) for kind, shape, place in layout], numbers


@functools.lru_cache(maxsize=1024)
def _layout(arrays: int, start: int, length: int, described: bytes) -> _Layout:
    """Where the arrays are in a message of `length` bytes, of which `start` come before their descriptions."""
    if arrays > MOST_ARRAYS:
        raise WireError(f"says it has {arrays} arrays: at most {MOST_ARRAYS} may come")
    found, place = [], 0
    try:
        for _ in range(arrays):
            code, dimensions = _ARRAY.unpack_from(described, place)
            if code >= len(_TYPES) or dimensions > MOST_DIMENSIONS:
                raise WireError(f"an array of type {code} with {dimensions} dimensions is unknown")
            found.append((_TYPES[code], struct.unpack_from(f"<{dimensions}Q", described, place + _ARRAY.size)))
            place += _ARRAY.size + 8 * dimensions
    except struct.error:
        raise WireError(f"ends within the description of its arrays, after {len(described)} bytes of it") from None
    end = start + len(described)
    if end % ALIGNED or len(described) - place >= ALIGNED:
        raise WireError(f"describes {arrays} arrays in {len(described)} bytes, which needs {place}")
    layout = []
    for kind, shape in found:
        if math.prod(max(size, 1) for size in shape) > _MOST_ITEMS:
            raise WireError(f"an array of an absurd shape, {shape}")
        size = math.prod(shape) * kind.itemsize
        place = _aligned(end) if size else 0
        end = place + size if size else end
        layout.append((kind, shape, place))
    if end != length:
        raise WireError(f"has {length} bytes, and its arrays end at {end}")
    return tuple(layout)


def _aligned(place: int) -> int:
    return -(-place // ALIGNED) * ALIGNED
