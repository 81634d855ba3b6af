"""Arrays as bytes: what goes in comes out, and nothing else comes out of anything."""

import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fragmenta.worker.channels.wire import WireError, pack, packed_size, unpack

KINDS = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
SOME = st.sampled_from(KINDS).flatmap(lambda kind: arrays.arrays(kind, SHAPES))
NUMBERS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4)


def joined(*arguments) -> bytearray:
    return bytearray(b"".join(pack(*arguments)))


@settings(max_examples=200, deadline=None)
@given(st.lists(SOME, max_size=4), NUMBERS)
def test_what_goes_in_comes_out(values: list[np.ndarray], numbers: list[int]) -> None:
    message = joined(values, numbers)
    assert len(message) == packed_size([(value.dtype, value.shape) for value in values], len(numbers))
    found, found_numbers = unpack(message)
    assert found_numbers == numbers
    assert len(found) == len(values)
    for value, other in zip(values, found, strict=True):
        assert (value.dtype, value.shape) == (other.dtype, other.shape)
        assert value.tobytes() == other.tobytes()


def test_bfloat16_and_arrays_that_are_not_contiguous() -> None:
    values = [np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3).T, np.arange(10)[::2], np.ones((3, 4))[:, 1]]
    found, _ = unpack(joined(values))
    assert found[0].dtype == ml_dtypes.bfloat16
    for value, other in zip(values, found, strict=True):
        np.testing.assert_array_equal(value, other)


def test_nothing_is_copied() -> None:
    value = np.arange(1000)
    assert np.shares_memory(np.frombuffer(pack([value])[1], np.uint8), value)
    message = joined([value])
    (found,), _ = unpack(message)
    found[7] = -1
    assert unpack(message)[0][0][7] == -1


@pytest.mark.parametrize(
    "value", [np.array(["text"]), np.array([object()]), np.zeros(3, ">f4"), np.zeros(2, "datetime64[s]")]
)
def test_other_types_are_refused(value: np.ndarray) -> None:
    with pytest.raises(WireError, match="cannot be sent"):
        pack([value])


def test_too_much_is_refused() -> None:
    with pytest.raises(WireError, match="64 bits"):
        pack([], [2**63])
    with pytest.raises(WireError, match="numbers"):
        pack([], [0] * 5000)
    with pytest.raises(WireError, match="dimensions"):
        pack([np.zeros((1,) * 33)])


def damaged(place: int, form: str, value: int) -> bytearray:
    message = joined([np.zeros((2, 3), np.float32)], [5])
    struct.pack_into(form, message, place, value)
    return message


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (b"", "ends within its header"),
        (b"FRG\x01", "ends within its header"),
        (damaged(0, "<B", 0), "begins with"),
        (damaged(3, "<B", 9), "another version"),
        (damaged(4, "<H", 100), "description"),
        (damaged(4, "<H", 60000), "at most"),
        (damaged(6, "<H", 60000), "at most"),
        (damaged(8, "<I", 2**32 - 1), "describes"),
        (damaged(12, "<Q", 2**63), "says it has"),
        (damaged(28, "<B", 99), "unknown"),
        (damaged(29, "<B", 200), "unknown"),
        (damaged(30, "<Q", 2**62), "absurd"),
        (damaged(30, "<Q", 3), "arrays end at"),
        (damaged(30, "<Q", 0), "arrays end at"),
        (joined([np.zeros(100)])[:-1], "says it has"),
        (joined([np.zeros(100)]) + b"x", "says it has"),
    ],
)
def test_damage_is_named(message: bytes, says: str) -> None:
    with pytest.raises(WireError, match=says):
        unpack(message)


def only_arrays_or_refused(message: bytes) -> None:
    try:
        found, numbers = unpack(message)
    except WireError:
        return
    assert sum(array.nbytes for array in found) <= len(message)
    assert all(isinstance(number, int) for number in numbers)
    for array in found:
        array.tobytes()


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=300), st.booleans())
def test_random_bytes_are_refused_or_arrays(message: bytes, has_magic: bool) -> None:
    only_arrays_or_refused(b"FRG\x01" + message if has_magic else message)


@settings(max_examples=500, deadline=None)
@given(st.lists(SOME, max_size=3), NUMBERS, st.data())
def test_flipped_bytes_are_refused_or_arrays(values: list[np.ndarray], numbers: list[int], data: st.DataObject) -> None:
    message = joined(values, numbers)
    for _ in range(data.draw(st.integers(1, 3))):
        message[data.draw(st.integers(0, min(len(message) - 1, 160)))] = data.draw(st.integers(0, 255))
    only_arrays_or_refused(bytes(message))
