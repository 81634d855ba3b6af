"""An algorithm that the processes of an engine load in another version than the coordinator.

Only a constant differs: stages, shapes and interfaces are the same.
"""

import dataclasses
import sys

import jax
import numpy as np

from fragmenta import Algorithm, Environment, stage
from fragmenta.rl import keys_by_index

IS_CHILD = getattr(sys.modules["__main__"].__spec__, "name", "") == "fragmenta_launch.child"
TABLE = np.array([0.0, 1.0, 2.0 if IS_CHILD else 3.0], np.float32)
State = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class TwoVersions(Algorithm):
    def init(self, env: Environment, key: jax.Array) -> State:
        return {"rows": jax.vmap(lambda key: jax.random.normal(key, (3,)))(keys_by_index(key, self.num_envs))}

    def params(self, state: State) -> State:
        return state

    @stage
    def learn(self, rows: jax.Array) -> jax.Array:
        return rows + TABLE

    def iterate(self, env: Environment, state: State) -> tuple[State, State]:
        return {"rows": self.learn(state["rows"])}, {}
