"""Elementwise operations."""

import jax
import jax.numpy as jnp
from jax import lax

from partition.table import BOOL, FLOAT, INT, NUMBERS, PLAIN, entries


def _spoiled(x, at):
    """x with infinity in place of large elements, minus infinity of small ones, and NaN of those near zero."""
    low, high, middle = (at(x) < -0.9, at(x) > 0.9, jnp.abs(at(x)) < 0.2)
    return jnp.where(low, -jnp.inf, jnp.where(high, jnp.inf, jnp.where(middle, jnp.nan, x)))


UNARY = (
    *entries(
        {
            "exp": lambda x, d: jnp.exp(x),
            "expm1": lambda x, d: jnp.expm1(x),
            "log": lambda x, d: jnp.log(jnp.abs(x) + 0.3),
            "log1p": lambda x, d: jnp.log1p(jnp.abs(x)),
            "sqrt": lambda x, d: jnp.sqrt(x * x + 0.1),
            "rsqrt": lambda x, d: lax.rsqrt(x * x + 0.1),
            "cbrt": lambda x, d: jnp.cbrt(x + 7.3),
            "sin": lambda x, d: jnp.sin(x),
            "tan": lambda x, d: jnp.tan(0.3 * x),
            "arctan": lambda x, d: jnp.arctan(x),
            "sinh": lambda x, d: jnp.sinh(x),
            "tanh": lambda x, d: jnp.tanh(x),
            "arcsinh": lambda x, d: jnp.arcsinh(x),
            "erf": lambda x, d: lax.erf(x),
            "lgamma": lambda x, d: jax.scipy.special.gammaln(jnp.abs(x) + 0.5),
            "digamma": lambda x, d: jax.scipy.special.digamma(jnp.abs(x) + 0.5),
            "logit": lambda x, d: jax.scipy.special.logit(0.5 + 0.1 * jnp.tanh(x)),
            "xlogy": lambda x, d: jax.scipy.special.xlogy(x, jnp.abs(x) + 0.3),
            "normal logpdf": lambda x, d: jax.scipy.stats.norm.logpdf(x, 0.1, 1.3),
            "sigmoid": lambda x, d: jax.nn.sigmoid(x),
            "softplus": lambda x, d: jax.nn.softplus(x),
            "gelu": lambda x, d: jax.nn.gelu(x),
            "silu": lambda x, d: jax.nn.silu(x),
            "elu": lambda x, d: jax.nn.elu(x),
            "mish": lambda x, d: jax.nn.mish(x),
            "reciprocal": lambda x, d: jnp.reciprocal(x * x + 0.5),
            "power of a constant": lambda x, d: jnp.power(1.7, x),
            "integer_pow": lambda x, d: lax.integer_pow(x, 3),
            "complex product": lambda x, d: jnp.real((x + 2j) * jnp.conj(x * 1j + 1)),
            "complex parts": lambda x, d: jnp.stack([jnp.imag(jnp.exp(1j * x)), jnp.abs(x + 1j)]),
        }
    ),
    *entries({"complex result": lambda x, d: lax.complex(x, 2 * x)}, smooth=False),
    *entries(
        {
            "relu": lambda x, d: jax.nn.relu(x),
            "leaky_relu": lambda x, d: jax.nn.leaky_relu(x),
            "abs": lambda x, d: jnp.abs(x),
            "clip": lambda x, d: jnp.clip(x, -0.61, 0.73),
            "negative": lambda x, d: -x,
            "stop_gradient": lambda x, d: lax.stop_gradient(x) * 1.0 + x * 0.0,
        },
        kinds=(FLOAT,),
        exact=True,
    ),
    *entries(
        {
            "floor": lambda x, d: jnp.floor(x * 3.7),
            "ceil": lambda x, d: jnp.ceil(x * 3.7),
            "round": lambda x, d: jnp.round(x * 3.7),
            "trunc": lambda x, d: jnp.trunc(x * 3.7),
            "sign": lambda x, d: jnp.sign(x),
            "heaviside": lambda x, d: jnp.heaviside(x, 0.5),
            "isnan": lambda x, d: jnp.isnan(_spoiled(x, lambda a: a)),
            "isfinite": lambda x, d: jnp.isfinite(_spoiled(x, lambda a: a)),
            "nan_to_num": lambda x, d: jnp.nan_to_num(_spoiled(x, lambda a: a), nan=0.5, posinf=9.0, neginf=-9.0),
            "nextafter": lambda x, d: jnp.nextafter(x, jnp.ones_like(x)) > x,
            "bits of a float": lambda x, d: lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32),
            "to int8": lambda x, d: (x * 20).astype(jnp.int8),
            "to uint8": lambda x, d: (jnp.abs(x) * 20).astype(jnp.uint8),
            "to bool": lambda x, d: x.astype(bool),
        },
        exact=True,
        jumps=True,
        smooth=False,
    ),
    *entries({"to bfloat16": lambda x, d: x.astype(jnp.bfloat16)}, within=3e-2),
    *entries({"to float16": lambda x, d: x.astype(jnp.float16)}, within=3e-3),
    *entries({"float16 sum": lambda x, d: jnp.sum(x.astype(jnp.float16), axis=d)}, within=1e-2),
    *entries({"to float32": lambda x, d: x.astype(jnp.float32)}, kinds=PLAIN, exact=True),
    *entries(
        {
            "invert": lambda x, d: ~x,
            "shift left": lambda x, d: x.astype(jnp.int32) << 3,
            "shift right": lambda x, d: x.astype(jnp.int32) >> 1,
            "population_count": lambda x, d: lax.population_count(x.astype(jnp.uint32)),
            "count leading zeros": lambda x, d: lax.clz(x.astype(jnp.int32)),
        },
        kinds=(INT, BOOL),
        exact=True,
        smooth=False,
    ),
)

BINARY = (
    *entries(
        {
            "add": lambda x, y, d: x + y,
            "subtract": lambda x, y, d: x - y,
            "multiply": lambda x, y, d: x * y,
        },
        kinds=NUMBERS,
        second="same",
    ),
    *entries(
        {
            "divide": lambda x, y, d: x / (jnp.abs(y) + 0.5),
            "power": lambda x, y, d: jnp.power(jnp.abs(x) + 0.5, y),
            "arctan2": lambda x, y, d: jnp.arctan2(x, jnp.abs(y) + 0.5),
            "logaddexp": lambda x, y, d: jnp.logaddexp(x, y),
            "hypot": lambda x, y, d: jnp.hypot(x, jnp.abs(y) + 0.5),
            "huber": lambda x, y, d: jnp.where(jnp.abs(x - y) < 1, 0.5 * (x - y) ** 2, jnp.abs(x - y) - 0.5),
            "lerp with a broadcast": lambda x, y, d: x + 0.3 * (jnp.expand_dims(y.max(axis=d), d) - x),
        },
        second="same",
    ),
    *entries(
        {
            "maximum": lambda x, y, d: jnp.maximum(x, y),
            "minimum": lambda x, y, d: jnp.minimum(x, y),
            "fmax with NaN": lambda x, y, d: jnp.fmax(jnp.where(x > 0.9, jnp.nan, x), y),
            "clip by an array": lambda x, y, d: jnp.clip(x, -jnp.abs(y), jnp.abs(y)),
        },
        second="same",
        exact=True,
        smooth=False,
    ),
    *entries(
        {
            "greater": lambda x, y, d: x > y,
            "less or equal": lambda x, y, d: x <= y,
            "equal": lambda x, y, d: jnp.round(x) == jnp.round(y),
            "isclose": lambda x, y, d: jnp.isclose(x, y, atol=0.3),
            "where": lambda x, y, d: jnp.where(x > 0.4131, x, y),
            "select_n": lambda x, y, d: lax.select_n(jnp.abs(x).astype(jnp.int32) % 3, x, y, x + 1),
            "select": lambda x, y, d: jnp.select([x > 0.7, y > 0.3], [x, y], x * 0 + 9),
            "piecewise": lambda x, y, d: jnp.piecewise(x, [x < y], [lambda a: -a, lambda a: a + 1]),
            "float modulo": lambda x, y, d: jnp.mod(x, jnp.abs(y) + 0.5),
            "copysign": lambda x, y, d: jnp.copysign(x, y),
        },
        kinds=(FLOAT,),
        second="same",
        exact=True,
        jumps=True,
        smooth=False,
    ),
    *entries(
        {
            "bitwise and": lambda x, y, d: x & y,
            "bitwise or": lambda x, y, d: x | y,
            "bitwise xor": lambda x, y, d: x ^ y,
            "logical and": lambda x, y, d: jnp.logical_and(x, y),
            "not equal": lambda x, y, d: x != y,
        },
        kinds=(INT, BOOL),
        second="same",
        exact=True,
        smooth=False,
    ),
    *entries(
        {
            "floor divide": lambda x, y, d: x // (jnp.abs(y) + 1),
            "remainder": lambda x, y, d: x % (jnp.abs(y) + 1),
            "divmod": lambda x, y, d: jnp.divmod(x, jnp.abs(y) + 2),
            "gcd": lambda x, y, d: jnp.gcd(x, y),
            "integer division": lambda x, y, d: lax.div(x, jnp.abs(y) + 1),
            "integer remainder": lambda x, y, d: lax.rem(x, jnp.abs(y) + 1),
            "left_shift": lambda x, y, d: jnp.left_shift(x, jnp.abs(y) % 5),
            "int8 overflow": lambda x, y, d: (x * 20).astype(jnp.int8) + (y * 20).astype(jnp.int8),
        },
        kinds=(INT,),
        second="same",
        exact=True,
        smooth=False,
    ),
)

ELEMENTWISE = UNARY + BINARY
