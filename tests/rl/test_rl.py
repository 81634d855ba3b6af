"""RL formulas against straightforward reference implementations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fragmenta import Transition
from fragmenta.rl import (
    Categorical,
    MultiCategorical,
    Normal,
    explained_variance,
    generalized_advantage,
    v_trace,
    value_fit,
)

TIME, ENVS = 12, 5


def steps() -> tuple[Transition, jax.Array, jax.Array, jax.Array]:
    draw = np.random.default_rng(0)
    reward, value, next_value, log_ratio = (jnp.asarray(draw.normal(size=(TIME, ENVS)), jnp.float32) for _ in range(4))
    terminated, truncated = (jnp.asarray(draw.random((TIME, ENVS)) < 0.2) for _ in range(2))
    empty = jnp.zeros((TIME, ENVS))
    return Transition(empty, empty, reward, terminated, truncated, empty), value, next_value, log_ratio


def test_v_trace_by_its_definition() -> None:
    trajectory, value, next_value, log_ratio = steps()
    gamma, decay, clip_rho, clip_c = 0.9, 0.8, 1.5, 1.1
    targets, advantages = v_trace(trajectory, value, next_value, log_ratio, gamma, decay, clip_rho, clip_c)
    ratio = np.exp(np.asarray(log_ratio, np.float64))
    rho, c = np.minimum(ratio, clip_rho), np.minimum(ratio, clip_c)
    r, v, nv = (np.asarray(x, np.float64) for x in (trajectory.reward, value, next_value))
    over = np.asarray(trajectory.terminated)
    ends = over | np.asarray(trajectory.truncated)
    for env in range(ENVS):
        for t in range(TIME):
            # v_s = V(x_s) + sum over t of gamma^(t-s) * (product of lambda c up to t) * delta_t, within the episode
            target, weight = v[t, env], 1.0
            for k in range(t, TIME):
                bootstrap = 0.0 if over[k, env] else gamma * nv[k, env]
                target += weight * rho[k, env] * (r[k, env] + bootstrap - v[k, env])
                weight *= gamma * decay * c[k, env]
                if ends[k, env]:
                    break
            np.testing.assert_allclose(targets[t, env], target, rtol=2e-4, atol=1e-5)
            following = nv[t, env]
            if t + 1 < TIME and not ends[t, env]:
                following += float(targets[t + 1, env]) - v[t + 1, env]
            advantage = rho[t, env] * (r[t, env] + (0.0 if over[t, env] else gamma * following) - v[t, env])
            np.testing.assert_allclose(advantages[t, env], advantage, rtol=2e-4, atol=1e-5)


def test_on_policy_v_trace_is_the_lambda_return() -> None:
    trajectory, value, next_value, _ = steps()
    targets, _ = v_trace(trajectory, value, next_value, jnp.zeros((TIME, ENVS)), 0.9, 0.8, 1.0, 1.0)
    expected = generalized_advantage(trajectory, value, next_value, 0.9, 0.8) + value
    np.testing.assert_allclose(targets, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.full
def test_several_integers_are_independent() -> None:
    logits = jnp.log(jnp.asarray([0.2, 0.8])), jnp.log(jnp.asarray([0.5, 0.25, 0.25]))
    count = 4_000
    distribution = MultiCategorical(tuple(Categorical(jnp.broadcast_to(part, (count, len(part)))) for part in logits))
    actions = distribution.sample(jax.random.split(jax.random.key(0), count))
    assert actions.shape == (count, 2)
    frequencies = np.histogram2d(*np.asarray(actions).T, bins=[np.arange(3), np.arange(4)])[0] / count
    np.testing.assert_allclose(frequencies, np.outer([0.2, 0.8], [0.5, 0.25, 0.25]), atol=0.03)
    action = jnp.broadcast_to(jnp.asarray([1, 2]), (count, 2))
    np.testing.assert_allclose(distribution.log_prob(action), np.log(0.8 * 0.25), rtol=1e-5)
    entropy = -(0.2 * np.log(0.2) + 0.8 * np.log(0.8)) + 1.5 * np.log(2)
    np.testing.assert_allclose(distribution.entropy(), entropy, rtol=1e-5)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_normal_actions_of_any_shape(shape: tuple[int, ...]) -> None:
    draw = np.random.default_rng(0)
    mean, action = (draw.normal(size=(5, 4, *shape)).astype(np.float32) for _ in range(2))
    log_std = draw.normal(size=shape).astype(np.float32)
    policy = Normal(jnp.asarray(mean), jnp.asarray(log_std))
    density = np.exp(-0.5 * ((action - mean) / np.exp(log_std)) ** 2) / (np.exp(log_std) * np.sqrt(2 * np.pi))
    expected = np.log(density).reshape(5, 4, -1).sum(axis=-1)
    np.testing.assert_allclose(policy.log_prob(jnp.asarray(action)), expected, rtol=1e-4)
    entropy = np.sum(np.log(np.exp(log_std) * np.sqrt(2 * np.pi * np.e)))
    np.testing.assert_allclose(policy.entropy(), np.full((5, 4), entropy), rtol=1e-4)
    row = Normal(jnp.asarray(mean[:, 0]), jnp.asarray(log_std))
    assert row.sample(jax.random.split(jax.random.key(0), 5)).shape == (5, *shape)


def test_explained_variance_by_its_definition() -> None:
    draw = np.random.default_rng(0)
    value, noise = (draw.normal(size=(TIME, ENVS)).astype(np.float32) for _ in range(2))
    target = 50.0 + value + 0.5 * noise  # far from zero, where float32 sums of squares lose most digits of the variance
    expected = 1 - np.var(target - value) / np.var(target)
    np.testing.assert_allclose(explained_variance(value_fit(jnp.asarray(target), target - value)), expected, rtol=5e-3)
    counts = draw.random((TIME, ENVS)) < 0.5
    expected = 1 - np.var((target - value)[counts]) / np.var(target[counts])
    # Masked entries may have any value.
    spoilt = jnp.asarray(np.where(counts, target, np.nan))
    np.testing.assert_allclose(
        explained_variance(value_fit(spoilt, spoilt - value, jnp.asarray(counts))), expected, rtol=5e-3
    )


@pytest.mark.parametrize("target", [0.0, 100.0])
def test_no_variance_to_explain(target: float) -> None:
    draw = np.random.default_rng(0)
    constant = jnp.full((TIME, ENVS), target)
    assert explained_variance(value_fit(constant, jnp.asarray(draw.normal(size=(TIME, ENVS)), jnp.float32))) == 0.0
    nobody = value_fit(jnp.arange(4.0), jnp.ones(4), jnp.zeros(4, bool))
    assert explained_variance(nobody) == 0.0


def test_explained_variance_adds_up_over_parts() -> None:
    draw = np.random.default_rng(0)
    target, error = (jnp.asarray(draw.normal(size=(TIME, ENVS)), jnp.float32) for _ in range(2))
    counts = jnp.asarray(draw.random((TIME, ENVS)) < 0.7)
    whole = explained_variance(value_fit(target, error, counts))
    parts = [value_fit(*(x[low : low + 3] for x in (target, error, counts))) for low in range(0, TIME, 3)]
    combined = jax.tree.map(lambda *x: jnp.mean(jnp.stack(x)), *parts)
    np.testing.assert_allclose(explained_variance(combined), whole, rtol=1e-5)
