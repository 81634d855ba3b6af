"""The canonical transition: final observations, truncation versus termination, keys per environment."""

import jax
import jax.numpy as jnp
import numpy as np

from fragmenta import make
from fragmenta.rl import keys_by_index


def test_next_observation_is_the_one_before_the_reset() -> None:
    env = make("ProbeDiscount")
    world = env.reset(keys_by_index(jax.random.key(0), 3))
    rows = []
    for _ in range(4):
        world, transition = env.step(world, jnp.zeros(3, jnp.int32))
        rows.append([float(x[0, 0] if x.ndim > 1 else x[0]) for x in transition[:1] + transition[2:6]])
    # observation, reward, terminated, truncated, next observation
    assert rows[0] == [0, 0, 0, 0, 1]
    assert rows[1] == [1, 1, 1, 0, 1], "the episode ended at 1; the world shows 0 again, the transition does not"
    assert rows[2] == [0, 0, 0, 0, 1]
    assert world.finished.episodes.tolist() == [2, 2, 2]
    assert world.finished.returns.tolist() == [2.0, 2.0, 2.0]
    assert world.clear_finished().finished.lengths.tolist() == [0, 0, 0]


def test_truncation_is_not_termination() -> None:
    env = make("ProbeTruncation")
    world = env.reset(keys_by_index(jax.random.key(0), 1))
    flags = []
    for _ in range(4):
        world, transition = env.step(world, jnp.zeros(1, jnp.int32))
        flags.append((bool(transition.terminated[0]), bool(transition.truncated[0])))
    assert flags == [(False, False), (False, True)] * 2


def test_an_environment_depends_on_its_global_index_only() -> None:
    env = make("CartPole-v1")
    keys = keys_by_index(jax.random.key(5), 8)
    whole, half = env.reset(keys), env.reset(keys[4:])
    for _ in range(60):
        whole, _ = env.step(whole, jnp.ones(8, jnp.int32))
        half, _ = env.step(half, jnp.ones(4, jnp.int32))
    np.testing.assert_array_equal(whole.observation[4:], half.observation)
    assert int(half.finished.episodes.sum()) > 0, "no reset happened: the test saw too little"
