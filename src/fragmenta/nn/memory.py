"""Memories of an episode: gated recurrent units, long short-term memory, and attention to the latest steps.

All of them keep what they remember in one vector per environment, which is zero at the start of an episode.
"""

import itertools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

HEADS = 4
"""Attention heads."""


class GRU(nn.Module):
    """A dense tanh layer, then gated recurrent units (Cho et al., 2014); same precisions as MLP."""

    units: int
    compute: str = "float32"

    @property
    def size(self) -> int:
        """Numbers that are remembered."""
        return self.units

    def setup(self) -> None:
        """Define the layers; the three gates are concatenated."""
        self.dense, self.gates, self.recall = _gated_layers(self.units, 3, self.compute)

    def inputs(self, x: jax.Array) -> jax.Array:
        """What does not depend on the memory, for any number of steps at once."""
        return self.gates(jnp.tanh(self.dense(x)))

    def step(self, memory: jax.Array, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The memory after a step, and the features for the networks."""
        reset, keep, candidate = jnp.split(inputs.astype(jnp.float32), 3, axis=-1)
        reset_by, keep_by, candidate_by = jnp.split(self.recall(memory).astype(jnp.float32), 3, axis=-1)
        keep = jax.nn.sigmoid(keep + keep_by)
        candidate = jnp.tanh(candidate + jax.nn.sigmoid(reset + reset_by) * candidate_by)
        memory = (1.0 - keep) * candidate + keep * memory
        return memory, memory

    def __call__(self, memory: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Memory and features after a step with these inputs."""
        return self.step(memory, self.inputs(x))


class LSTM(nn.Module):
    """A dense tanh layer, then long short-term memory (Hochreiter and Schmidhuber, 1997); same precisions as MLP."""

    units: int
    compute: str = "float32"

    @property
    def size(self) -> int:
        """Numbers that are remembered: cells and outputs."""
        return 2 * self.units

    def setup(self) -> None:
        """Define the layers; the four gates are concatenated."""
        self.dense, self.gates, self.recall = _gated_layers(self.units, 4, self.compute)

    def inputs(self, x: jax.Array) -> jax.Array:
        """What does not depend on the memory, for any number of steps at once."""
        return self.gates(jnp.tanh(self.dense(x)))

    def step(self, memory: jax.Array, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The memory after a step, and the features for the networks."""
        cell, output = jnp.split(memory, 2, axis=-1)
        total = inputs.astype(jnp.float32) + self.recall(output).astype(jnp.float32)
        write, forget, candidate, show = jnp.split(total, 4, axis=-1)
        # Forgetting starts low, so that gradients reach far back.
        cell = jax.nn.sigmoid(forget + 1.0) * cell + jax.nn.sigmoid(write) * jnp.tanh(candidate)
        output = jax.nn.sigmoid(show) * jnp.tanh(cell)
        return jnp.concatenate([cell, output], axis=-1), output

    def __call__(self, memory: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Memory and features after a step with these inputs."""
        return self.step(memory, self.inputs(x))


class Attention(nn.Module):
    """One transformer block (Vaswani et al., 2017) in which a step attends to the latest `window` steps, itself among
    them; same precisions as MLP."""

    units: int
    window: int
    compute: str = "float32"

    @property
    def size(self) -> int:
        """Numbers that are remembered: an embedding of each step, and how many there are."""
        return self.window * self.units + 1

    def setup(self) -> None:
        """Define the layers."""

        def dense(outputs: int, bias: bool = True) -> nn.Dense:
            orthogonal = nn.initializers.orthogonal(1.0)
            return nn.Dense(outputs, use_bias=bias, dtype=jnp.dtype(self.compute), kernel_init=orthogonal)

        self.embed, self.query, self.value, self.mix = (dense(self.units) for _ in range(4))
        self.key = dense(self.units, bias=False)  # a bias would add the same to all scores of a step, which is nothing
        self.wide, self.narrow = dense(4 * self.units), dense(self.units)
        self.before, self.between, self.after = (nn.LayerNorm(dtype=jnp.float32) for _ in range(3))
        self.age = self.param("age", nn.initializers.normal(0.02), (self.window, self.units))

    def inputs(self, x: jax.Array) -> jax.Array:
        """What does not depend on the memory, for any number of steps at once."""
        return self.embed(x)

    def step(self, memory: jax.Array, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The memory after a step, and the features for the networks."""
        leading, heads = memory.shape[:-1], HEADS if self.units % HEADS == 0 else 1
        new = inputs.astype(jnp.float32)
        steps = memory[..., :-1].reshape(*leading, self.window, self.units)
        steps = jnp.concatenate([steps[..., 1:, :], new[..., None, :]], axis=-2)
        count = jnp.minimum(memory[..., -1:] + 1.0, self.window)

        def by_head(x: jax.Array) -> jax.Array:
            return x.astype(jnp.float32).reshape(*x.shape[:-1], heads, -1)

        normal = self.before(steps + self.age)
        query, key, value = (
            by_head(self.query(normal[..., -1, :])),
            by_head(self.key(normal)),
            by_head(self.value(normal)),
        )
        scores = jnp.einsum("...hd,...whd->...hw", query, key) * (self.units // heads) ** -0.5
        is_there = jnp.arange(self.window) >= self.window - count[..., None]
        weights = jax.nn.softmax(jnp.where(is_there, scores, -1e9), axis=-1)
        mixed = jnp.einsum("...hw,...whd->...hd", weights, value).reshape(*leading, self.units)
        features = new + self.mix(mixed).astype(jnp.float32)
        features = features + self.narrow(nn.gelu(self.wide(self.between(features)))).astype(jnp.float32)
        memory = jnp.concatenate([steps.reshape(*leading, -1), count], axis=-1)
        return memory, self.after(features)

    def __call__(self, memory: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Memory and features after a step with these inputs."""
        return self.step(memory, self.inputs(x))


class OwnCell(nn.Module):
    """A user's cell, or one of Flax, whose carry is kept as one vector."""

    cell: Any

    @property
    def size(self) -> int:
        """Numbers that are remembered."""
        return sum(leaf.size for leaf in jax.tree.leaves(self._carry()))

    def inputs(self, x: jax.Array) -> jax.Array:
        """What does not depend on the memory: the cell does all of its work in `step`."""
        return x

    def step(self, memory: jax.Array, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The memory after a step, and the features for the networks."""
        leaves, structure = jax.tree.flatten(self._carry())
        ends = list(itertools.accumulate(leaf.size for leaf in leaves))
        carry, features = self.cell(jax.tree.unflatten(structure, jnp.split(memory, ends[:-1], axis=-1)), inputs)
        memory = jnp.concatenate(jax.tree.leaves(carry), axis=-1)
        return memory.astype(jnp.float32), features.astype(jnp.float32)

    def __call__(self, memory: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Memory and features after a step with these inputs."""
        return self.step(memory, self.inputs(x))

    def _carry(self) -> Any:
        if isinstance(self.cell, nn.RNNCellBase):
            return jax.eval_shape(lambda: self.cell.initialize_carry(jax.random.key(0), (1,)))
        return jax.ShapeDtypeStruct((self.cell.size,), jnp.float32)


NO_CELL = "none"
CELLS = ("gru", "lstm", "transformer")


def memory_cell(name: str, units: int, window: int, compute: str) -> Any:
    """The memory of that name."""
    if name == "transformer":
        return Attention(units, window, compute)
    return {"gru": GRU, "lstm": LSTM}[name](units, compute)


def _gated_layers(units: int, gates: int, compute: str) -> tuple[nn.Dense, nn.Dense, nn.Dense]:
    def dense(outputs: int, scale: float) -> nn.Dense:
        return nn.Dense(outputs, dtype=jnp.dtype(compute), kernel_init=nn.initializers.orthogonal(scale))

    return dense(units, 2**0.5), dense(gates * units, 1.0), dense(gates * units, 1.0)
