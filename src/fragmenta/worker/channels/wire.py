"""Serialises arrays and integers as a header and raw bytes. Received bytes are untrusted and fully validated."""

import functools
import math
import struct
from collections.abc import Sequence

import ml_dtypes
import numpy as np

Buffer = bytes | bytearray | memoryview

ALIGNED = 64
"""Arrays start at multiples of this, so that arrays in an aligned buffer can be used without a copy."""
MOST_ARRAYS = MOST_NUMBERS = 4096
MOST_DIMENSIONS = 32
_MOST_ITEMS = 2**48
_MOST_DESCRIPTION = MOST_ARRAYS * (2 + 8 * MOST_DIMENSIONS) + ALIGNED
_MOST_CACHED = 4096
_TYPES = tuple(
    np.dtype(kind)
    for kind in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", ml_dtypes.bfloat16, "complex64", "complex128"),
    )
)
_CODES = {kind: code for code, kind in enumerate(_TYPES)}
_HEAD = struct.Struct("<4sHHIQ")
"""Magic, arrays, integers, bytes of array descriptions, total bytes; then the integers, then the descriptions."""
_MAGIC = b"FRG\x01"
"""The last byte is the version of the format."""
_ARRAY = struct.Struct("<BB")
_Layout = tuple[tuple[np.dtype, tuple[int, ...], int], ...]
"""Type, shape and offset of each array."""


class WireError(ValueError):
    """Invalid message bytes, or a value that cannot be sent; the message says why."""


def pack(arrays: Sequence[np.ndarray], numbers: Sequence[int] = ()) -> list[bytes | memoryview]:
    """The parts of a message: a header, then the arrays' memory (copied only if not contiguous)."""
    head, descriptions, offsets = _describe(len(numbers), *[(array.dtype, array.shape) for array in arrays])
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


def packed_size(arrays: Sequence[tuple[np.dtype, tuple[int, ...]]], numbers: int = 0) -> int:
    """Bytes of a message with arrays of these types and shapes, and this number of integers."""
    head, _, _ = _describe(numbers, *arrays)
    return _HEAD.unpack(head)[-1]


@functools.lru_cache(maxsize=1024)
def _describe(numbers: int, *arrays: tuple[np.dtype, tuple[int, ...]]) -> tuple[bytes, bytes, tuple[int, ...]]:
    """The header before the integers, the descriptions after them, and the offset of each array."""
    if len(arrays) > MOST_ARRAYS or numbers > MOST_NUMBERS:
        raise WireError(f"{len(arrays)} arrays and {numbers} integers: a message takes at most {MOST_ARRAYS} of each")
    descriptions = b""
    for kind, shape in arrays:
        if kind not in _CODES:
            raise WireError(f"arrays of type {kind} cannot be sent: use {', '.join(map(str, _TYPES))}")
        if len(shape) > MOST_DIMENSIONS:
            raise WireError(f"an array of {len(shape)} dimensions: at most {MOST_DIMENSIONS} can be sent")
        descriptions += _ARRAY.pack(_CODES[kind], len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
    descriptions += bytes(-(_HEAD.size + 8 * numbers + len(descriptions)) % ALIGNED)
    end = _HEAD.size + 8 * numbers + len(descriptions)
    offsets = []
    for kind, shape in arrays:
        offsets.append(_aligned(end))
        if size := math.prod(shape) * kind.itemsize:
            end = offsets[-1] + size
    return _HEAD.pack(_MAGIC, len(arrays), numbers, len(descriptions), end), descriptions, tuple(offsets)


def unpack(buffer: Buffer) -> tuple[list[np.ndarray], list[int]]:
    """The arrays, as views of the buffer, and the integers of a message."""
    try:
        magic, arrays, count, description_size, length = _HEAD.unpack_from(buffer)
        if magic != _MAGIC:
            raise WireError(f"starts with {magic!r}, not {_MAGIC!r}: not a message, or another version of the format")
        if length != len(buffer):
            raise WireError(f"declares {length} bytes, but has {len(buffer)}")
        if count > MOST_NUMBERS:
            raise WireError(f"declares {count} integers: at most {MOST_NUMBERS} are allowed")
        numbers = list(struct.unpack_from(f"<{count}q", buffer, _HEAD.size)) if count else []
    except struct.error:
        raise WireError(f"ends within its header, after {len(buffer)} bytes") from None
    offset = _HEAD.size + 8 * count
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
            code, dimensions = _ARRAY.unpack_from(descriptions, offset)
            if code >= len(_TYPES) or dimensions > MOST_DIMENSIONS:
                raise WireError(f"an array of type {code} with {dimensions} dimensions is not supported")
            signatures.append((_TYPES[code], struct.unpack_from(f"<{dimensions}Q", descriptions, offset + _ARRAY.size)))
            offset += _ARRAY.size + 8 * dimensions
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
        offset = _aligned(end) if size else 0
        end = offset + size if size else end
        layout.append((kind, shape, offset))
    if end != length:
        raise WireError(f"has {length} bytes, but its arrays end at {end}")
    return tuple(layout)


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNED) * ALIGNED
