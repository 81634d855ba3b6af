"""Stacked observations: the latest ones; the first is repeated, and none is from the previous episode."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragmenta
from fragmenta import PPO, Box, ConfigError, EnvOptions, Stack, make
from fragmenta.envs.probes import ProbeTeam
from fragmenta.rl import keys_by_index
from own_parts import Forbidden


@pytest.mark.full
def test_stacks_the_latest_observations_and_restarts_at_a_reset() -> None:
    plain, env = make("CartPole-v1"), Stack(make("CartPole-v1"), 3)
    assert isinstance(env.observation_space, Box)
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


def test_the_mask_of_legal_actions_is_not_stacked() -> None:
    env = Stack(Forbidden(), 3)
    shapes = {name: part.shape for name, part in env.observation_space.spaces}  # pyright: ignore
    assert shapes == {"action_mask": (4,), "best": (3, 4), "noise": (3, 2)}
    first = env.reset(keys_by_index(jax.random.key(0), 2))
    after, _ = env.step(first, jnp.argmax(first.observation["best"][:, -1], axis=-1))
    np.testing.assert_array_equal(after.observation["best"][:, :2], first.observation["best"][:, 1:])
    for world in (first, after):
        is_legal = jnp.sum(world.observation["action_mask"] * world.observation["best"][:, -1], axis=-1)
        assert is_legal.tolist() == [1, 1], "what is best now is legal now"
    PPO(num_envs=2, horizon=8).validate(env)


def test_the_mask_of_a_stacked_gymnasium_environment_is_the_latest() -> None:
    env = make("host_envs:FussyInParts", EnvOptions(stack=4))
    shapes = {name: part.shape for name, part in env.observation_space.spaces}  # pyright: ignore
    assert shapes == {"action_mask": (3,), "seen": (4, 2)}


@pytest.mark.full
def test_the_latest_mask_is_followed() -> None:
    env = make("host_envs:FussyInParts", EnvOptions(stack=4))
    result = fragmenta.train("ppo", env, num_envs=2, horizon=16, hidden=(8,), total_steps=128)
    returns = {record["return_mean"] for record in result.metrics if record["episodes"]}
    assert returns == {5.0}, "an illegal action would have ended an episode"


def test_spaces_that_cannot_be_stacked_are_refused() -> None:
    with pytest.raises(ConfigError, match="ProbeTeam cannot be stacked"):
        Stack(ProbeTeam(), 2)
    with pytest.raises(ConfigError, match="frames is 0"):
        Stack(make("CartPole-v1"), 0)
