"""DQN and its extensions reach the known values of probe environments."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import fragmenta
from fragmenta import DQN, make

PROBE = DQN(
    num_envs=8,
    batch_size=64,
    buffer_size=4_000,
    learning_starts=500,
    updates=8,
    n_step=1,
    learning_rate=2e-3,
    anneal=False,
    target_every=50,
    gamma=0.9,
    hidden=(32, 32),
    total_steps=16_000,
    value_range=(-2.0, 12.0),
)
EXTENSIONS: dict[str, dict[str, Any]] = {
    "plain": {"double": False},
    "double": {},
    "dueling": {"dueling": True},
    "n-step": {"n_step": 3},
    "prioritized": {"prioritized": True},
    "c51": {"distribution": "c51"},
    "quantile": {"distribution": "quantile", "atoms": 11},
    "noisy": {"noisy": True},
    "ladder": {"ladder": True},
    "rainbow": {"dueling": True, "n_step": 3, "prioritized": True, "distribution": "c51", "noisy": True},
}


def values(result: fragmenta.Result, env: str, observation: float) -> list[float]:
    algorithm = result.algorithm
    assert isinstance(algorithm, DQN)
    return algorithm.values(make(env), result.params, jnp.asarray([[observation]]))[0].tolist()


@pytest.mark.brief("prioritized")
@pytest.mark.parametrize("extension", EXTENSIONS)
def test_the_better_action_is_found(extension: str) -> None:
    result = fragmenta.train(PROBE, "ProbeAction", progress=False, **EXTENSIONS[extension])
    for sign, best in ((1.0, 1), (-1.0, 0)):
        chosen = values(result, "ProbeAction", sign)
        assert chosen[best] == pytest.approx(1.0, abs=0.15)
        # Noisy weights stop trying the worse action before its value is exact.
        assert chosen[1 - best] == pytest.approx(-1.0, abs=0.5 if extension == "noisy" else 0.3)


@pytest.mark.full
@pytest.mark.brief("quantile")
@pytest.mark.parametrize("extension", ["double", "n-step", "c51", "quantile", "rainbow"])
def test_later_rewards_are_discounted(extension: str) -> None:
    result = fragmenta.train(PROBE, "ProbeDiscount", progress=False, **EXTENSIONS[extension])
    assert max(values(result, "ProbeDiscount", 0.0)) == pytest.approx(0.9, abs=0.1)
    assert max(values(result, "ProbeDiscount", 1.0)) == pytest.approx(1.0, abs=0.1)


@pytest.mark.full
@pytest.mark.brief("n-step")
@pytest.mark.parametrize("extension", ["double", "n-step", "c51"])
def test_a_truncated_episode_is_worth_what_would_come_after(extension: str) -> None:
    result = fragmenta.train(PROBE, "ProbeTruncation", total_steps=30_000, progress=False, **EXTENSIONS[extension])
    assert max(values(result, "ProbeTruncation", 0.0)) == pytest.approx(10.0, rel=0.08)


def test_every_update_of_an_iteration_draws_steps_of_all_ages() -> None:
    algorithm = DQN(num_envs=2, batch_size=128, buffer_size=2_000, updates=4, prioritized=True, n_step=1)
    env = make("CartPole-v1")
    replay = algorithm.init(env, jax.random.key(0)).replay
    rows = replay.steps.reward.shape[0]
    trajectory = jax.tree.map(lambda x: jnp.zeros_like(x), replay.steps)
    replay = algorithm.insert(replay, trajectory)
    batches = algorithm.sample(replay, jax.random.split(jax.random.key(1), 2), jnp.asarray(0.4))
    assert batches.rows.shape == (4, 64, 2)
    for update in batches.rows:
        assert update.min() < rows * 0.05, "the oldest"
        assert update.max() > rows * 0.95, "the newest"


@pytest.mark.parametrize("dueling", [False, True])
def test_a_network_without_hidden_layers(dueling: bool) -> None:
    algorithm, env = DQN(hidden=(), dueling=dueling), make("CartPole-v1")
    shapes = jax.eval_shape(lambda key: algorithm.init(env, key), jax.random.key(0)).learner.params["q"]["params"]
    outputs = [layer["kernel"].shape for layer in shapes.values()]
    assert outputs == ([(4, 1), (4, 2)] if dueling else [(4, 2)])
