"""Convolutions that are quick wherever they are computed.

On a CPU, XLA computes the gradients of a convolution inside a loop some thirty times slower than outside. There a
convolution is written as the matrix product that it is: patches of the picture times filters.
"""

import functools
from typing import Any, cast

import jax
import jax.numpy as jnp


def convolve(pictures: jax.Array, filters: jax.Array, stride: int) -> jax.Array:
    """Pictures (number, height, width, channels) by filters (height, width, channels, number), without padding."""
    return cast(jax.Array, _convolve(pictures, filters, stride))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _convolve(pictures: jax.Array, filters: jax.Array, stride: int) -> jax.Array:
    by_patches, as_it_is = (functools.partial(way, stride=stride) for way in (_by_patches, _as_it_is))
    return jax.lax.platform_dependent(pictures, filters, cpu=by_patches, default=as_it_is)


def _forward(pictures: jax.Array, filters: jax.Array, stride: int) -> tuple[Any, Any]:
    return _convolve(pictures, filters, stride), (pictures, filters)


def _backward(stride: int, kept: Any, cotangent: jax.Array) -> Any:
    def pull(way: Any, pictures: jax.Array, filters: jax.Array, cotangent: jax.Array) -> Any:
        _, back = jax.vjp(functools.partial(way, stride=stride), pictures, filters)
        return back(cotangent)

    by_patches, as_it_is = (functools.partial(pull, way) for way in (_by_patches, _as_it_is))
    return jax.lax.platform_dependent(*kept, cotangent, cpu=by_patches, default=as_it_is)


_convolve.defvjp(_forward, _backward)


def _as_it_is(pictures: jax.Array, filters: jax.Array, stride: int) -> jax.Array:
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(pictures, filters, (stride, stride), "VALID", dimension_numbers=numbers)


def _by_patches(pictures: jax.Array, filters: jax.Array, stride: int) -> jax.Array:
    size, wide, _, count = filters.shape
    rows = stride * ((pictures.shape[1] - size) // stride) + 1
    columns = stride * ((pictures.shape[2] - wide) // stride) + 1
    patches = [pictures[:, i : i + rows : stride, j : j + columns : stride] for i in range(size) for j in range(wide)]
    return jnp.concatenate(patches, axis=-1) @ filters.reshape(-1, count)
