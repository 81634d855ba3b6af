"""Stacked observations: the latest ones; the first is repeated, and none is from the previous episode."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fragmenta import ConfigError, Stack, make
from fragmenta.envs.probes import ProbeTeam
from fragmenta.rl import keys_by_index


@pytest.mark.full
def test_stacks_the_latest_observations_and_restarts_at_a_reset() -> None:
    plain, env = make("CartPole-v1"), Stack(make("CartPole-v1"), 3)
    assert env.observation_space.shape == (3, 4)
    assert (env.max_steps, env.shortest_cut, env.action_space) == (500, 500, plain.action_space)
    keys = keys_by_index(jax.random.key(0), 2)
    alone, world = plain.reset(keys), env.reset(keys)
    expected = jnp.stack([alone.observation] * 3, axis=1)
    resets = 0
    for _ in range(40):
        np.testing.assert_array_equal(world.observation, expected)
        action = jnp.ones(2, jnp.int32)
        alone, single = plain.step(alone, action)
        world, transition = env.step(world, action)
        after = jnp.concatenate([expected[:, 1:], single.next_observation[:, None]], axis=1)
        np.testing.assert_array_equal(transition.next_observation, after)
        ended = single.terminated[:, None, None]
        expected = jnp.where(ended, jnp.stack([alone.observation] * 3, axis=1), after)
        resets += int(jnp.sum(single.terminated))
    assert resets, "no episode ended: the test saw too little"


def test_spaces_that_cannot_be_stacked_are_refused() -> None:
    with pytest.raises(ConfigError, match="ProbeTeam cannot be stacked"):
        Stack(ProbeTeam(), 2)
    with pytest.raises(ConfigError, match="frames is 0"):
        Stack(make("CartPole-v1"), 0)
