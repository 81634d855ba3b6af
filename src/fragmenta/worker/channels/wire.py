"""The format of messages between processes: a header, integers, descriptions of arrays, then the arrays' bytes."""

import functools
import math
import struct
from collections.abc import Sequence

import ml_dtypes
import numpy as np

Key = tuple[int, str]
"""Identifies a value in a bundle: its id in the graph, and its consumer."""
ALIGNED = 64
"""Arrays start at multiples of this, so that arrays in an aligned buffer can be used without a copy."""
MOST_ARRAYS = MOST_NUMBERS = 4096
MOST_DIMENSIONS = 32
TYPES = tuple(
    np.dtype(kind)
    for kind in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", ml_dtypes.bfloat16, "complex64", "complex128"),
    )
)
CODES = {kind: code for code, kind in enumerate(TYPES)}
HEAD = struct.Struct("<4sHHIQ")
"""Magic, arrays, integers, bytes of array descriptions, total bytes; then the integers, then the descriptions."""
MAGIC = b"FRG\x01"
"""The last byte is the version of the format."""
ARRAY = struct.Struct("<BB")


class WireError(ValueError):
    """Invalid message bytes, or a value that cannot be sent; the message says why."""


def packed_size(arrays: Sequence[tuple[np.dtype, tuple[int, ...]]], numbers: int = 0) -> int:
    """Bytes of a message with arrays of these types and shapes, and this number of integers."""
    head, _, _ = describe(numbers, *arrays)
    return HEAD.unpack(head)[-1]


def bundle_size(arrays: Sequence[tuple[np.dtype, tuple[int, ...]]]) -> int:
    """Bytes of the message of a bundle with values of these types and shapes."""
    return packed_size(arrays, numbers=3)


@functools.lru_cache(maxsize=1024)
def describe(numbers: int, *arrays: tuple[np.dtype, tuple[int, ...]]) -> tuple[bytes, bytes, tuple[int, ...]]:
    """The header before the integers, the descriptions after them, and the offset of each array."""
    if len(arrays) > MOST_ARRAYS or numbers > MOST_NUMBERS:
        raise WireError(f"{len(arrays)} arrays and {numbers} integers: a message takes at most {MOST_ARRAYS} of each")
    descriptions = b""
    for kind, shape in arrays:
        if kind not in CODES:
            raise WireError(f"arrays of type {kind} cannot be sent: use {', '.join(map(str, TYPES))}")
        if len(shape) > MOST_DIMENSIONS:
            raise WireError(f"an array of {len(shape)} dimensions: at most {MOST_DIMENSIONS} can be sent")
        descriptions += ARRAY.pack(CODES[kind], len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
    descriptions += bytes(-(HEAD.size + 8 * numbers + len(descriptions)) % ALIGNED)
    end = HEAD.size + 8 * numbers + len(descriptions)
    offsets = []
    for kind, shape in arrays:
        offsets.append(aligned(end))
        if size := math.prod(shape) * kind.itemsize:
            end = offsets[-1] + size
    return HEAD.pack(MAGIC, len(arrays), numbers, len(descriptions), end), descriptions, tuple(offsets)


def aligned(offset: int) -> int:
    """The next offset at which an array may start."""
    return -(-offset // ALIGNED) * ALIGNED
