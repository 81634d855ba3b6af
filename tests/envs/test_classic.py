"""The built-in environments step like Gymnasium's, from the same states."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fragmenta import Discrete, make
from fragmenta.envs import ENVIRONMENTS

CLASSIC = list(ENVIRONMENTS)


def gymnasium_state(reference: gymnasium.Env) -> np.ndarray:
    return np.asarray(reference.unwrapped.state, np.float32)  # pyright: ignore


@pytest.mark.brief("CartPole*", "Pendulum*")
@pytest.mark.parametrize("name", CLASSIC)
def test_steps_like_gymnasium(name: str) -> None:
    env, reference = make(name), gymnasium.make(name)
    advance = jax.jit(env.advance)
    kind = type(env.initial(jax.random.key(0)))
    actions = np.random.default_rng(1)
    reference.reset(seed=0)
    terminations = 0
    for step in range(2_000):
        if name == "Acrobot-v1" and step % 4:
            action = 2 if gymnasium_state(reference)[3] > 0 else 0  # swings up, so that episodes end
        elif isinstance(env.action_space, Discrete):
            action = int(actions.integers(env.action_space.n))
        else:
            action = actions.uniform(-3.0, 3.0, env.action_space.shape).astype(np.float32)
        # Every step starts from Gymnasium's state, so that rounding errors do not accumulate.
        state = kind(*jnp.asarray(gymnasium_state(reference)))
        state, reward, terminated = advance(state, jnp.asarray(action), jax.random.key(step))
        observation, expected_reward, expected_terminated, truncated, _ = reference.step(action)
        np.testing.assert_allclose(env.observe(state), observation, rtol=1e-4, atol=1e-5)
        assert float(reward) == pytest.approx(float(expected_reward), rel=1e-4, abs=1e-5)
        assert bool(terminated) == expected_terminated
        terminations += expected_terminated
        if expected_terminated or truncated:
            reference.reset()
    assert terminations or name in ("Pendulum-v1", "MountainCar-v0"), "no episode ended: the test saw too little"


def test_mountain_car_reaches_the_goal_like_gymnasium() -> None:
    env, reference = make("MountainCar-v0"), gymnasium.make("MountainCar-v0").unwrapped
    reference.reset(seed=0)
    reference.state = (0.49, 0.06)  # pyright: ignore
    state = type(env.initial(jax.random.key(0)))(jnp.float32(0.49), jnp.float32(0.06))
    _, _, terminated = env.advance(state, jnp.int32(2), jax.random.key(0))
    assert bool(terminated) == reference.step(2)[2] == True  # noqa: E712


@pytest.mark.parametrize("name", CLASSIC)
def test_limits_and_spaces_match(name: str) -> None:
    env, reference = make(name), gymnasium.make(name)
    assert reference.spec is not None
    assert env.max_steps == reference.spec.max_episode_steps
    assert env.observation_space.shape == reference.observation_space.shape
    if isinstance(env.action_space, Discrete):
        assert env.action_space.n == reference.action_space.n  # pyright: ignore
    else:
        assert env.action_space.shape == reference.action_space.shape


@pytest.mark.parametrize("name", CLASSIC)
def test_initial_states_are_in_gymnasiums_range(name: str) -> None:
    env, reference = make(name), gymnasium.make(name)
    states = np.stack(jax.vmap(env.initial)(jax.random.split(jax.random.key(0), 500)))
    reference_states = np.stack(
        [np.asarray((reference.reset(seed=i), gymnasium_state(reference))[1]) for i in range(500)], 1
    )
    np.testing.assert_allclose(
        states.min(axis=1), reference_states.min(axis=1), atol=0.05 * np.abs(reference_states).max() + 0.01
    )
    np.testing.assert_allclose(
        states.max(axis=1), reference_states.max(axis=1), atol=0.05 * np.abs(reference_states).max() + 0.01
    )
