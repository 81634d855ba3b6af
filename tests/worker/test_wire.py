"""The wire format of arrays: a round trip is exact, and any other bytes are refused or give valid arrays."""

import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fragmenta.worker.channels.receiving import unpack
from fragmenta.worker.channels.sending import pack
from fragmenta.worker.channels.wire import WireError, packed_size

KINDS = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
SOME = st.sampled_from(KINDS).flatmap(lambda kind: arrays.arrays(kind, SHAPES))
NUMBERS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4)


def packed_bytes(*arguments) -> bytearray:
    return bytearray(b"".join(pack(*arguments)))


@settings(max_examples=200, deadline=None)
@given(st.lists(SOME, max_size=4), NUMBERS)
def test_a_round_trip_is_exact(values: list[np.ndarray], numbers: list[int]) -> None:
    message = packed_bytes(values, numbers)
    assert len(message) == packed_size([(value.dtype, value.shape) for value in values], len(numbers))
    unpacked, unpacked_numbers = unpack(message)
    assert unpacked_numbers == numbers
    assert len(unpacked) == len(values)
    for value, copy in zip(values, unpacked, strict=True):
        assert (value.dtype, value.shape) == (copy.dtype, copy.shape)
        assert value.tobytes() == copy.tobytes()


def test_bfloat16_and_arrays_that_are_not_contiguous() -> None:
    values = [np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3).T, np.arange(10)[::2], np.ones((3, 4))[:, 1]]
    unpacked, _ = unpack(packed_bytes(values))
    assert unpacked[0].dtype == ml_dtypes.bfloat16
    for value, copy in zip(values, unpacked, strict=True):
        np.testing.assert_array_equal(value, copy)


def test_nothing_is_copied() -> None:
    value = np.arange(1000)
    assert np.shares_memory(np.frombuffer(pack([value])[1], np.uint8), value)
    message = packed_bytes([value])
    (view,), _ = unpack(message)
    view[7] = -1
    assert unpack(message)[0][0][7] == -1


@pytest.mark.parametrize(
    "value", [np.array(["text"]), np.array([object()]), np.zeros(3, ">f4"), np.zeros(2, "datetime64[s]")]
)
def test_other_types_are_refused(value: np.ndarray) -> None:
    with pytest.raises(WireError, match="cannot be sent"):
        pack([value])


def test_numbers_and_dimensions_beyond_the_limits_are_refused() -> None:
    with pytest.raises(WireError, match="64 bits"):
        pack([], [2**63])
    with pytest.raises(WireError, match="integers"):
        pack([], [0] * 5000)
    with pytest.raises(WireError, match="dimensions"):
        pack([np.zeros((1,) * 33)])


def corrupted(place: int, form: str, value: int) -> bytearray:
    message = packed_bytes([np.zeros((2, 3), np.float32)], [5])
    struct.pack_into(form, message, place, value)
    return message


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (b"", "ends within its header"),
        (b"FRG\x01", "ends within its header"),
        (corrupted(0, "<B", 0), "starts with"),
        (corrupted(3, "<B", 9), "another version"),
        (corrupted(4, "<H", 100), "description"),
        (corrupted(4, "<H", 60000), "at most"),
        (corrupted(6, "<H", 60000), "at most"),
        (corrupted(8, "<I", 2**32 - 1), "describes"),
        (corrupted(12, "<Q", 2**63), "declares"),
        (corrupted(28, "<B", 99), "not supported"),
        (corrupted(29, "<B", 200), "not supported"),
        (corrupted(30, "<Q", 2**62), "implausible"),
        (corrupted(30, "<Q", 3), "arrays end at"),
        (corrupted(30, "<Q", 0), "arrays end at"),
        (packed_bytes([np.zeros(100)])[:-1], "declares"),
        (packed_bytes([np.zeros(100)]) + b"x", "declares"),
    ],
)
def test_damage_is_named(message: bytes, error: str) -> None:
    with pytest.raises(WireError, match=error):
        unpack(message)


def only_arrays_or_refused(message: bytes) -> None:
    try:
        arrays, numbers = unpack(message)
    except WireError:
        return
    assert sum(array.nbytes for array in arrays) <= len(message)
    assert all(isinstance(number, int) for number in numbers)
    for array in arrays:
        array.tobytes()


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=300), st.booleans())
def test_random_bytes_are_refused_or_arrays(message: bytes, has_magic: bool) -> None:
    only_arrays_or_refused(b"FRG\x01" + message if has_magic else message)


@settings(max_examples=500, deadline=None)
@given(st.lists(SOME, max_size=3), NUMBERS, st.data())
def test_flipped_bytes_are_refused_or_arrays(values: list[np.ndarray], numbers: list[int], data: st.DataObject) -> None:
    message = packed_bytes(values, numbers)
    for _ in range(data.draw(st.integers(1, 3))):
        message[data.draw(st.integers(0, min(len(message) - 1, 160)))] = data.draw(st.integers(0, 255))
    only_arrays_or_refused(bytes(message))
