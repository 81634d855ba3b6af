"""Encodes observations of any space as vectors for a network."""

import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from fragmenta.errors import ConfigError
from fragmenta.nn.convolution import convolve
from fragmenta_core.spaces import Box, Dict, Discrete, MultiDiscrete, Space

FEATURES = 512
"""Features that an image is encoded into."""
Layers = tuple[tuple[jax.Array, jax.Array], ...]


class Convolution(NamedTuple):
    """One convolutional layer: number of filters, their size, and their stride."""

    filters: int
    size: int
    stride: int


LARGE = (Convolution(32, 8, 4), Convolution(64, 4, 2), Convolution(64, 3, 1))
"""The usual network for Atari (Mnih et al., 2015)."""
SMALL = (Convolution(32, 3, 1), Convolution(64, 3, 2))
"""For images that are too small for the large network."""


class Encoder(nn.Module):
    """Encodes each observation of a space as one vector; only images need parameters.

    Numbers stay as they are, discrete values become one-hot, images go through convolutions, and the parts of a
    dictionary are concatenated.
    """

    space: Space
    compute: str = "float32"

    @nn.compact
    def __call__(self, observation: Any) -> jax.Array:
        """The vectors for a batch of any leading shape."""
        return self._row(self.space, observation, "picture")

    def _row(self, space: Space, observation: Any, name: str) -> jax.Array:
        if isinstance(space, Dict):
            parts = sorted(space.spaces)
            return jnp.concatenate([self._row(part, observation[key], f"{name}_{key}") for key, part in parts], axis=-1)
        if isinstance(space, Discrete):
            return jax.nn.one_hot(observation, space.n)
        if isinstance(space, MultiDiscrete):
            one_hots = [jax.nn.one_hot(observation[..., i], n) for i, n in enumerate(space.choices)]
            return jnp.concatenate(one_hots, axis=-1)
        if space.is_image:
            return ImageEncoder(space.shape, self.compute, name=name)(observation)
        leading = observation.shape[: observation.ndim - len(space.shape)]
        return observation.reshape(*leading, math.prod(space.shape)).astype(jnp.float32)


class ImageEncoder(nn.Module):
    """Convolutions and one dense layer, with orthogonal weights; computes in `compute`, returns float32."""

    shape: tuple[int, ...]
    compute: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """The features of a batch of any leading shape."""
        height, width, channels = image_size(self.shape)
        layers, orthogonal = [], nn.initializers.orthogonal(2**0.5)
        convolutions = convolutions_for(self.shape)
        for i, (filters, size, stride) in enumerate(convolutions):
            kernel = self.param(f"kernel_{i}", orthogonal, (size, size, channels, filters))
            layers.append((kernel, self.param(f"bias_{i}", nn.initializers.zeros, (filters,))))
            height, width, channels = (height - size) // stride + 1, (width - size) // stride + 1, filters
        kernel = self.param("kernel_out", orthogonal, (height * width * channels, FEATURES))
        layers.append((kernel, self.param("bias_out", nn.initializers.zeros, (FEATURES,))))
        strides = tuple(convolution.stride for convolution in convolutions)
        return _features(tuple(layers), x, shape=self.shape, strides=strides, compute=self.compute)


def check_observations(space: Space) -> None:
    """Raise ConfigError if the space contains an image that is too small."""
    if isinstance(space, Dict):
        for _, part in space.spaces:
            check_observations(part)
    elif isinstance(space, Box) and space.is_image:
        convolutions_for(space.shape)


def has_images(space: Space) -> bool:
    """Whether encoding observations of the space needs parameters."""
    if isinstance(space, Dict):
        return any(has_images(part) for _, part in space.spaces)
    return isinstance(space, Box) and space.is_image


def convolutions_for(shape: tuple[int, ...]) -> tuple[Convolution, ...]:
    """The layers for an image of that shape; ConfigError if it is too small for any."""
    height, width, _ = image_size(shape)
    network = next((layers for layers in (LARGE, SMALL) if min(height, width) >= _smallest(layers)), None)
    if network is None:
        least = _smallest(SMALL)
        problem = f"images of {height} x {width} are too small for convolutions, which need {least} x {least} or more"
        raise ConfigError(f"{problem}: return them as float32 instead of uint8")
    return network


def image_size(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Height, width and channels. Of the last three dimensions, the smaller of the outer two is the channels.

    Leading dimensions are stacked images, whose channels add up.
    """
    *frames, first, middle, last = shape
    height, width, channels = (middle, last, first) if first < last else (first, middle, last)
    return height, width, channels * math.prod(frames)


def _smallest(layers: tuple[Convolution, ...]) -> int:
    """The side of the smallest image that leaves at least one output after all layers."""
    side = 1
    for _, size, stride in reversed(layers):
        side = (side - 1) * stride + size
    return side


def _features(layers: Layers, x: jax.Array, shape: tuple[int, ...], strides: tuple[int, ...], compute: str) -> Any:
    dtype = jnp.dtype(compute)
    leading = x.shape[: x.ndim - len(shape)]
    channels = -3 if shape[-3] < shape[-1] else -1
    x = jnp.moveaxis(x.reshape(-1, math.prod(shape[:-3]), *shape[-3:]), (1, channels), (-2, -1))
    x = x.reshape(-1, *image_size(shape)).astype(dtype) / 255
    for (kernel, bias), stride in zip(layers, strides, strict=False):
        x = jax.nn.relu(convolve(x, kernel.astype(dtype), stride) + bias.astype(dtype))
    kernel, bias = layers[-1]
    x = jax.nn.relu(x.reshape(x.shape[0], -1) @ kernel.astype(dtype) + bias.astype(dtype))
    return x.reshape(*leading, FEATURES).astype(jnp.float32)
