"""What only some rows need is left out of rounds in which no row of a warp needs it, and right in the others."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fragmenta.worker.backends.kernel import with_kernels
from fragmenta.worker.kernels.ir import Kernel, RowLoop
from fragmenta.worker.kernels.source import Shape, source
from kernel_launchers import WAYS, launcher


def episodes(keys: jax.Array, lengths: jax.Array) -> list[jax.Array]:
    """Rows that start anew from drawn numbers after as many rounds as their length."""

    def step(carry: Any, _: Any) -> Any:
        position, age, keys = carry
        keys, drawn = jnp.unstack(jax.vmap(jax.random.split)(keys), axis=1)
        ended = age + 1 >= lengths
        fresh = jax.vmap(lambda key: jax.random.uniform(key, (2,)))(drawn)
        position = jnp.where(ended[:, None], fresh, position + 1)
        return (position, jnp.where(ended, 0, age + 1), keys), position

    start = (jnp.zeros((len(lengths), 2)), jnp.zeros_like(lengths), jax.random.wrap_key_data(keys))
    return [jax.lax.scan(step, start, length=20)[1]]


def prepared(way: str, kernels: list[Kernel]) -> Any:
    return lambda kernel: kernels.append(kernel) or launcher(way, Shape(warps=2, exact=True))(kernel)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("lengths", [[1000] * 50, [7] * 50, list(range(1, 51))])
def test_episodes_start_anew(way: str, lengths: list[int]) -> None:
    keys = jax.random.key_data(jax.random.split(jax.random.key(3), len(lengths)))
    found: list[Kernel] = []
    rewritten = with_kernels(episodes, [keys, jnp.int32(jnp.array(lengths))], prepared(way, found))
    arrays = [keys, jnp.int32(jnp.array(lengths))]
    for actual, expected in zip(rewritten.function(*arrays), episodes(*arrays), strict=True):
        np.testing.assert_allclose(actual, expected, 1e-6)
    (kernel,) = found
    (loop,) = [op for op in kernel.body if isinstance(op, RowLoop)]
    hashes = [op for op in loop.body if op.name == "threefry"]
    assert [op for op in hashes if "when" in op.attributes]
    assert [op for op in hashes if "when" not in op.attributes]  # keys go on in every round
    assert "any_lane" in source(kernel, Shape()).text
