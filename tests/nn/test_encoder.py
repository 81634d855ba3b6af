"""Observations of every space are encoded as rows; images give the same row for any channel order."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fragmenta import Box, ConfigError, Dict, Discrete, MultiDiscrete
from fragmenta.nn.convolution import convolve
from fragmenta.nn.encoder import FEATURES, Encoder, check_observations, convolutions_for, has_images


def rows(space, observation):
    return Encoder(space).apply({}, observation)


def test_vectors_are_unchanged() -> None:
    x = jnp.ones((3, 2, 4))
    assert rows(Box(-1, 1, (4,)), x) is x
    jaxpr = jax.make_jaxpr(lambda x: rows(Box(-1, 1, (4,)), x))(x)
    assert not jaxpr.eqns, "the path of today's vectors must cost nothing"


def test_numbers_of_any_shape_and_type_become_floats_in_a_row() -> None:
    x = jnp.arange(24, dtype=jnp.int32).reshape(2, 2, 3, 2)
    encoded = rows(Box(0, 9, (3, 2), "int32"), x)
    assert (encoded.shape, encoded.dtype) == ((2, 2, 6), jnp.float32)
    np.testing.assert_array_equal(encoded, x.reshape(2, 2, 6))
    assert rows(Box(0, 1, ()), jnp.ones((5,))).shape == (5, 1)


def test_choices_become_one_hot_and_dictionaries_are_sorted_by_name() -> None:
    space = Dict((("b", Discrete(3)), ("a", Dict((("y", MultiDiscrete((2, 3))), ("x", Box(-1, 1, ())))))))
    observation = {"b": jnp.asarray([2, 0]), "a": {"y": jnp.asarray([[1, 2], [0, 1]]), "x": jnp.asarray([0.5, -0.5])}}
    # a.x, a.y in two parts, b
    expected = [[0.5, 0, 1, 0, 0, 1, 0, 0, 1], [-0.5, 1, 0, 0, 1, 0, 1, 0, 0]]
    np.testing.assert_array_equal(rows(space, observation), expected)
    assert not has_images(space)


@pytest.mark.full
def test_image_channels_may_be_first_last_or_stacked_frames() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (5, 40, 38, 4)).astype(np.uint8)
    last = Encoder(Box(0, 255, (40, 38, 4), "uint8"))
    params = jax.jit(last.init)(jax.random.key(0), pictures)
    expected = last.apply(params, pictures)
    assert expected.shape == (5, FEATURES)
    first = Encoder(Box(0, 255, (4, 40, 38), "uint8")).apply(params, np.moveaxis(pictures, -1, 1))
    framed = pictures.reshape(5, 40, 38, 2, 2)
    frames = Encoder(Box(0, 255, (2, 40, 38, 2), "uint8")).apply(params, np.moveaxis(framed, 3, 1))
    np.testing.assert_allclose(first, expected, atol=1e-5)
    np.testing.assert_allclose(frames, expected, atol=1e-5)
    several = last.apply(params, pictures[None])
    np.testing.assert_allclose(several[0], expected, atol=1e-5)
    half = Encoder(Box(0, 255, (40, 38, 4), "uint8"), "bfloat16").apply(params, pictures)
    assert half.dtype == jnp.float32
    np.testing.assert_allclose(half, expected, atol=0.05)


def test_layers_fit_the_image_or_it_is_refused() -> None:
    assert [layer.size for layer in convolutions_for((4, 84, 84))] == [8, 4, 3]
    assert [layer.size for layer in convolutions_for((36, 36, 1))] == [8, 4, 3]
    assert [layer.size for layer in convolutions_for((5, 5, 3))] == [3, 3]
    with pytest.raises(ConfigError, match=r"4 x 9 are too small.*5 x 5 or more"):
        check_observations(Dict((("eye", Box(0, 255, (4, 9, 1), "uint8")),)))


@pytest.mark.full
@pytest.mark.parametrize(("size", "stride"), [pytest.param(8, 4, marks=pytest.mark.full), (4, 2), (3, 1)])
def test_convolutions_equal_those_of_jax(size: int, stride: int) -> None:
    pictures, filters = (
        jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate([(3, 23, 21, 4), (size, size, 4, 6)])
    )

    def plain(pictures, filters):
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(pictures, filters, (stride, stride), "VALID", dimension_numbers=numbers)

    def loss(way):
        return lambda *arguments: jnp.sum(jnp.sin(way(*arguments)))

    ours = functools.partial(convolve, stride=stride)
    np.testing.assert_allclose(ours(pictures, filters), plain(pictures, filters), atol=1e-4)
    for actual, expected in zip(
        jax.grad(loss(ours), (0, 1))(pictures, filters),
        jax.grad(loss(plain), (0, 1))(pictures, filters),
        strict=True,
    ):
        np.testing.assert_allclose(actual, expected, atol=1e-3)
