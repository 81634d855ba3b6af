"""An algorithm of three independent parts; the replicas of each part communicate at every step."""

import dataclasses

import jax
import jax.numpy as jnp

from fragmenta import Algorithm, Cluster, Environment, Fragment, stage

PARTS = ("left", "middle", "right")
STEPS = 5
State = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Triplets(Algorithm):
    def init(self, env: Environment, key: jax.Array) -> State:
        return {name: jax.random.normal(key, (self.num_envs, 16)) for name in PARTS}

    def params(self, state: State) -> State:
        return state

    @stage
    def left(self, rows: jax.Array) -> jax.Array:
        return _mixed(rows)

    @stage
    def middle(self, rows: jax.Array) -> jax.Array:
        return _mixed(rows)

    @stage
    def right(self, rows: jax.Array) -> jax.Array:
        return _mixed(rows)

    def iterate(self, env: Environment, state: State) -> tuple[State, State]:
        return {name: getattr(self, name)(state[name]) for name in PARTS}, {}


def _mixed(rows: jax.Array) -> jax.Array:
    def step(rows: jax.Array, _: None) -> tuple[jax.Array, None]:
        return jnp.sin(rows + jnp.mean(rows)), None

    return jax.lax.scan(step, rows, length=STEPS)[0]


def side_by_side(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    """Each part on all devices."""
    devices = cluster.one_each(cluster.replicas)
    return [Fragment(name, (name,), devices, cluster.replicas, axis="envs") for name in PARTS]
