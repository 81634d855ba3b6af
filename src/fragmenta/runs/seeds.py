"""Several seeds as one compiled program: the loop of an algorithm, vmapped over keys."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fragmenta.algorithms import Algorithm
from fragmenta.envs import Environment
from fragmenta.tracing.iteration import iteration


@dataclasses.dataclass(frozen=True)
class Seeds(Algorithm):
    """Trains another algorithm once per seed; the seed is the leading dimension of its state and metrics."""

    inner: Algorithm = dataclasses.field(kw_only=True)
    seeds: tuple[int, ...] = dataclasses.field(kw_only=True)

    @property
    def steps_per_iteration(self) -> int | None:
        """Environment steps per seed, where they cannot be counted in the program."""
        return self.inner.steps_per_iteration

    @property
    def rebuildable(self) -> tuple[str, ...]:
        """The same fields, of every seed."""
        return self.inner.rebuildable

    def init(self, env: Environment, key: jax.Array) -> Any:
        """The initial state of every seed, as if it were trained alone; the key is not used."""
        # Tracing the loop for a replica changes num_envs.
        inner = dataclasses.replace(self.inner, num_envs=self.num_envs)
        # Not vmap: batched QR decompositions, as of orthogonal weights, can wait forever for each other on few cores.
        return jax.lax.map(lambda key: inner.init(env, key), jnp.stack([jax.random.key(seed) for seed in self.seeds]))

    def iterate(self, env: Environment, state: Any) -> tuple[Any, dict[str, jax.Array]]:
        """One iteration of every seed."""
        return jax.vmap(iteration(self.inner, env))(state)

    def params(self, state: Any) -> Any:
        """The parameters of all seeds."""
        return jax.vmap(self.inner.params)(state)

    def with_params(self, state: Any, params: Any) -> Any:
        """A state in which every seed has the same parameters, those of one seed."""
        return jax.vmap(self.inner.with_params, (0, None))(state, params)


def with_seeds(algorithm: Algorithm, first: int, count: int) -> Algorithm:
    """The algorithm itself for one seed, else one that trains it for the seeds `first`, `first + 1` and so on."""
    if count == 1:
        return algorithm
    seeds = tuple(range(first, first + count))
    return Seeds(algorithm.num_envs, algorithm.total_steps, inner=algorithm, seeds=seeds)


def of_seed(tree: Any, index: int) -> Any:
    """What belongs to one seed in the parameters or the state of several."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def record_of_seed(record: dict[str, Any], index: int) -> dict[str, Any]:
    """What a record of several seeds says about one of them, as if it had been trained alone."""
    progress = {name: record[name] for name in ("iteration", "steps", "seconds") if name in record}
    return progress | {name: values[index] for name, values in record["per_seed"].items()}
