"""Whatever an environment shows, as rows of numbers that a network takes."""

import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from fragmenta.errors import ConfigError
from fragmenta.nn.convolution import convolve
from fragmenta_core.spaces import Box, Dict, Discrete, MultiDiscrete, Space

FEATURES = 512
"""Numbers into which a picture is turned."""
Layers = tuple[tuple[jax.Array, jax.Array], ...]


class Convolution(NamedTuple):
    """One layer: how many filters, of which size, and how far apart they are put."""

    filters: int
    size: int
    stride: int


LARGE = (Convolution(32, 8, 4), Convolution(64, 4, 2), Convolution(64, 3, 1))
"""As usual for Atari (Mnih et al., 2015)."""
SMALL = (Convolution(32, 3, 1), Convolution(64, 3, 2))
"""For pictures that are too small for the large ones."""


class Encoder(nn.Module):
    """Observations of a space as one row each; only pictures have parameters.

    Numbers stay as they are, choices become one-hot, pictures go through convolutions, the parts of a
    dictionary are side by side.
    """

    space: Space
    compute: str = "float32"

    @nn.compact
    def __call__(self, observation: Any) -> jax.Array:
        """The rows for a batch of any leading shape."""
        return self._row(self.space, observation, "picture")

    def _row(self, space: Space, observation: Any, name: str) -> jax.Array:
        if isinstance(space, Dict):
            parts = sorted(space.spaces)
            return jnp.concatenate([self._row(part, observation[key], f"{name}_{key}") for key, part in parts], axis=-1)
        if isinstance(space, Discrete):
            return jax.nn.one_hot(observation, space.n)
        if isinstance(space, MultiDiscrete):
            each = [jax.nn.one_hot(observation[..., i], n) for i, n in enumerate(space.choices)]
            return jnp.concatenate(each, axis=-1)
        if space.is_image:
            return Picture(space.shape, self.compute, name=name)(observation)
        leading = observation.shape[: observation.ndim - len(space.shape)]
        return observation.reshape(*leading, math.prod(space.shape)).astype(jnp.float32)


class Picture(nn.Module):
    """Convolutions and one dense layer, with orthogonal weights; computes in `compute`, returns float32."""

    shape: tuple[int, ...]
    compute: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """The features of a batch of any leading shape."""
        height, width, channels = picture_size(self.shape)
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
    """Raise ConfigError if the space holds a picture that is too small."""
    if isinstance(space, Dict):
        for _, part in space.spaces:
            check_observations(part)
    elif isinstance(space, Box) and space.is_image:
        convolutions_for(space.shape)


def has_pictures(space: Space) -> bool:
    """Whether encoding observations of the space takes parameters."""
    if isinstance(space, Dict):
        return any(has_pictures(part) for _, part in space.spaces)
    return isinstance(space, Box) and space.is_image


def convolutions_for(shape: tuple[int, ...]) -> tuple[Convolution, ...]:
    """The layers for a picture of that shape; ConfigError if it is too small for any."""
    height, width, _ = picture_size(shape)
    found = next((layers for layers in (LARGE, SMALL) if min(height, width) >= _smallest(layers)), None)
    if found is None:
        least = _smallest(SMALL)
        wrong = f"pictures of {height} x {width} are too small for convolutions, which take {least} x {least} or more"
        raise ConfigError(f"{wrong}: show them as numbers of type float32")
    return found


def picture_size(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Height, width and channels: of the last three dimensions, the smaller one at an end has the channels.

    Dimensions before them are pictures on top of each other, whose channels add up.
    """
    *frames, first, middle, last = shape
    height, width, channels = (middle, last, first) if first < last else (first, middle, last)
    return height, width, channels * math.prod(frames)


def _smallest(layers: tuple[Convolution, ...]) -> int:
    """The side of the smallest picture of which something is left after all layers."""
    side = 1
    for _, size, stride in reversed(layers):
        side = (side - 1) * stride + size
    return side


def _features(layers: Layers, x: jax.Array, shape: tuple[int, ...], strides: tuple[int, ...], compute: str) -> Any:
    dtype = jnp.dtype(compute)
    leading = x.shape[: x.ndim - len(shape)]
    channels = -3 if shape[-3] < shape[-1] else -1
    x = jnp.moveaxis(x.reshape(-1, math.prod(shape[:-3]), *shape[-3:]), (1, channels), (-2, -1))
    x = x.reshape(-1, *picture_size(shape)).astype(dtype) / 255
    for (kernel, bias), stride in zip(layers, strides, strict=False):
        x = jax.nn.relu(convolve(x, kernel.astype(dtype), stride) + bias.astype(dtype))
    kernel, bias = layers[-1]
    x = jax.nn.relu(x.reshape(x.shape[0], -1) @ kernel.astype(dtype) + bias.astype(dtype))
    return x.reshape(*leading, FEATURES).astype(jnp.float32)
