"""Running statistics cover all data so far, for any number of replicas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragmenta
from fragmenta import PPO, Box, ConfigError, Dict, Transition, make
from fragmenta.rl.normalize import Moments, add_observations, no_moments, running_returns, standardized
from helpers import cpu_cluster, initial_state
from replicas import on_replicas

TIME, ENVS = 6, 4
SIZES = {"num_envs": 8, "horizon": 16, "epochs": 1, "minibatches": 1, "hidden": (8,)}
SMALL = PPO(normalize_observations=True, normalize_rewards=True, **SIZES)


def test_moments_cover_all_data() -> None:
    draw = np.random.default_rng(0)
    # Far from zero from the first batch on, so that sums of raw squares would lose the variance to rounding.
    batches = [draw.normal(5_000 + i, 1 + i, (TIME, ENVS, 3)).astype(np.float32) for i in range(20)]
    moments = no_moments(Box(-1, 1, (3,)))
    for batch in batches:
        moments = moments.add(jnp.asarray(batch))
    everything = np.concatenate(batches).reshape(-1, 3).astype(np.float64)
    np.testing.assert_allclose(moments.number, len(everything))
    np.testing.assert_allclose(moments.mean, everything.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(moments.std(), everything.std(axis=0), rtol=1e-3)


def test_replicas_have_the_statistics_of_one() -> None:
    x = jax.random.normal(jax.random.key(0), (TIME, ENVS, 3))
    start = no_moments(Box(-1, 1, (3,)))
    for whole, replicas in zip(start.add(x), on_replicas(start.add, (x,), (1,), 2), strict=True):
        np.testing.assert_allclose(replicas, whole, rtol=1e-5)


def test_only_numbers_are_normalized_and_outliers_clipped() -> None:
    space = Dict((("eye", Box(0, 255, (5, 5, 1), "uint8")), ("speed", Box(-1, 1, ()))))
    observation = {"eye": jnp.full((2, 2, 5, 5, 1), 9, jnp.uint8), "speed": jnp.asarray([[1.0, 3.0], [1.0, 3.0]])}
    nothing = no_moments(space)
    np.testing.assert_array_equal(standardized(nothing, observation)["speed"], observation["speed"])
    moments = add_observations(nothing, observation)
    assert moments["eye"] is None
    normalised = standardized(moments, {**observation, "speed": jnp.asarray([[1.0, 3.0], [2.0, 99.0]])})
    assert normalised["eye"] is observation["eye"]
    np.testing.assert_allclose(normalised["speed"], [[-1, 1], [0, 10]], rtol=1e-5, atol=1e-6)


def test_running_returns_restart_with_each_episode() -> None:
    ended = np.zeros((5, 1), bool)
    ended[1] = True
    reward = jnp.asarray([[1.0], [2.0], [3.0], [4.0], [5.0]])
    trajectory = Transition((), (), reward, jnp.asarray(ended), jnp.zeros((5, 1), bool), ())  # pyright: ignore
    last, returns = running_returns(jnp.asarray([8.0]), trajectory, 0.5)
    np.testing.assert_allclose(returns[:, 0], [5, 4.5, 3, 5.5, 7.75])
    np.testing.assert_allclose(last, [7.75])


@pytest.mark.full
def test_learning_normalises_as_acting_did() -> None:
    """With one minibatch the ratio is 1, no matter how much the iteration changed the statistics."""
    env = make("Pendulum-v1")
    result = fragmenta.train(SMALL, env, total_steps=3 * 8 * 16)
    assert len(result.metrics) == 3
    assert all(abs(record["kl"]) < 1e-6 for record in result.metrics)
    normalizer = result.state.normalizer
    assert float(normalizer.observation.number) == float(normalizer.reward.number) == 3 * 8 * 16
    assert isinstance(result.params["moments"], Moments), "who acts with them needs no more than the observation"
    action, _ = SMALL.act(env, result.params, result.state.world.observation, result.state.keys)
    assert action.shape == (8, 1)


@pytest.mark.full
def test_without_the_flags_the_state_is_unchanged() -> None:
    state = initial_state(PPO(), make("CartPole-v1"))
    assert not jax.tree.leaves(state.normalizer)
    assert not jax.tree.leaves(state.memory)


def test_asynchronous_actors_cannot_share_running_returns() -> None:
    algorithm = fragmenta.IMPALA(num_envs=8, horizon=8, hidden=(8,), normalize_rewards=True)
    with pytest.raises(ConfigError, match=r"keeps 'normalizer\.running_return' for all environments"):
        fragmenta.train(algorithm, "CartPole-v1", policy="single_learner_async", cluster=cpu_cluster(3, 2))
