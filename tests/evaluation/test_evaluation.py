"""Evaluation: exactly the requested number of episodes, with known returns."""

import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fragmenta import (
    A2C,
    IMPALA,
    MAPPO,
    PPO,
    Algorithm,
    ConfigError,
    Environment,
    EnvOptions,
    RecurrentPPO,
    load,
    make,
    train,
)
from fragmenta.envs.probes import ProbeDiscount, ProbeTruncation
from fragmenta.evaluation.background import BackgroundEvaluation
from fragmenta.evaluation.evaluate import Evaluation, evaluate
from odd_algorithm import Odd

SMALL: dict[str, Any] = {"num_envs": 4, "horizon": 8, "hidden": (8,)}


def untrained(algorithm: Algorithm, env: Environment) -> Any:
    return algorithm.params(jax.jit(lambda key: algorithm.init(env, key))(jax.random.key(0)))


def evaluate_untrained(algorithm: Algorithm, env: Environment, **options: Any) -> Evaluation:
    return evaluate(algorithm, env, untrained(algorithm, env), **options)


@pytest.mark.full
@pytest.mark.parametrize(
    "algorithm",
    [
        PPO(**SMALL),
        pytest.param(A2C(**SMALL), marks=pytest.mark.full),
        pytest.param(IMPALA(**SMALL), marks=pytest.mark.full),
        RecurrentPPO(**SMALL, memory=4),
    ],
)
@pytest.mark.parametrize("deterministic", [True, False])
def test_known_returns_and_lengths(algorithm: Algorithm, deterministic: bool) -> None:
    paid_at_the_end = evaluate_untrained(algorithm, ProbeDiscount(), episodes=7, deterministic=deterministic)
    assert (paid_at_the_end.returns == 1).all()
    assert (paid_at_the_end.lengths == 2).all()
    cut_off = evaluate_untrained(algorithm, ProbeTruncation(max_steps=5), episodes=3, deterministic=deterministic)
    assert cut_off.returns.tolist() == [5, 5, 5]
    assert cut_off.unfinished == 0


@pytest.mark.full
def test_a_trained_policy_gets_its_return() -> None:
    """ProbeMemory pays 1 only if the policy remembers the first observation."""
    recurrent = RecurrentPPO(num_envs=32, horizon=16, hidden=(16,), memory=16, learning_rate=5e-3, entropy_cost=0.0)
    trained = train(recurrent, "ProbeMemory", total_steps=40_000)
    evaluation = evaluate(recurrent, make("ProbeMemory"), trained.params, 50)
    assert (evaluation.mean, evaluation.std, evaluation.interval) == (1.0, 0.0, (1.0, 1.0))


@pytest.mark.full
@pytest.mark.parametrize("shared", [True, pytest.param(False, marks=pytest.mark.full)])
def test_teams(shared: bool) -> None:
    """Agent i of four takes part in i + 1 steps; each pays 1 or -1, on average 0 for random actions."""
    algorithm = MAPPO(num_envs=32, horizon=10, hidden=(32,), shared=shared)
    evaluation = evaluate_untrained(algorithm, make("ProbeTeam"), episodes=100, deterministic=False)
    assert (evaluation.lengths == 4).all()
    assert set(evaluation.returns) <= {i / 2 for i in range(-5, 6)}, (
        "ten steps in all, and a return is the mean over agents"
    )
    assert abs(evaluation.mean) < 0.5


@pytest.mark.full
@pytest.mark.parametrize("env", ["CartPole-v1", "gymnasium:CartPole-v1"])
def test_the_seed_decides_and_more_episodes_extend_the_list(env: str) -> None:
    algorithm, environment = PPO(**SMALL), make(env, EnvOptions(env_mode="serial") if ":" in env else None)
    params = untrained(algorithm, environment)
    eight, again, twelve, other_seed = (
        evaluate(algorithm, environment, params, episodes, seed, deterministic=False)
        for episodes, seed in ((8, 0), (8, 0), (12, 0), (8, 1))
    )
    assert eight.returns.tolist() == again.returns.tolist() == twelve.returns[:8].tolist()
    assert eight.returns.tolist() != other_seed.returns.tolist()
    assert len(set(twelve.returns)) > 1
    assert (eight.returns == eight.lengths).all(), "CartPole pays 1 a step"


def test_the_host_equals_the_compiled_program() -> None:
    """A policy that always pushes left has equally long episodes in both versions of CartPole."""
    algorithm = PPO(**SMALL)
    params = untrained(algorithm, make("CartPole-v1"))
    bias = params["policy"]["params"]["bias_1"]
    params["policy"]["params"]["bias_1"] = jnp.asarray([100.0, 0.0], bias.dtype)
    in_jax = evaluate(algorithm, make("CartPole-v1"), params, 100)
    on_host = evaluate(algorithm, make("gymnasium:CartPole-v1", EnvOptions(env_mode="serial")), params, 100)
    assert {*in_jax.lengths, *on_host.lengths} <= {8, 9, 10, 11}
    assert abs(in_jax.mean - on_host.mean) < 0.5


@pytest.mark.full
def test_more_episodes_on_the_host_than_run_at_a_time() -> None:
    options = EnvOptions(env_args='{"ends": 3}', wrappers=("host_envs:Doubled",), env_mode="serial")
    env = make("host_envs:Counter", options)
    evaluation = evaluate_untrained(A2C(**SMALL), env, episodes=70, deterministic=False)
    assert (evaluation.lengths == 3).all()
    assert set(evaluation.returns) <= {-6.0, -4.0, -2.0, 0.0, 2.0, 4.0, 6.0}
    assert len(evaluation.returns) == 70


@pytest.mark.full
def test_training_on_the_host_is_not_disturbed(tmp_path: Path) -> None:
    """The training pool keeps its episodes while the same environment is evaluated."""
    env = make("host_envs:Counter", EnvOptions(env_args='{"ends": 50}', env_mode="serial"))
    algorithm = A2C(**SMALL)
    with env.opened():
        world = env.reset(jax.random.split(jax.random.key(0), 4))
        world, _ = env.step(world, jnp.zeros(4, jnp.int32))
        evaluate(algorithm, env, untrained_shape(algorithm, env), 5)
        world, _ = env.step(world, jnp.zeros(4, jnp.int32))
        assert np.asarray(world.observation)[:, 1].tolist() == [2, 2, 2, 2]


def untrained_shape(algorithm: Algorithm, env: Environment) -> Any:
    """Zero parameters, made without a reset."""
    shapes = jax.eval_shape(lambda: algorithm.params(algorithm.init(env, jax.random.key(0))))
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


@pytest.mark.full
def test_observations_are_normalised_as_in_acting(tmp_path: Path) -> None:
    algorithm = PPO(**SMALL, normalize_observations=True)
    train(algorithm, "Pendulum-v1", total_steps=320, run_dir=tmp_path / "run")
    run = load(tmp_path / "run")
    params, world = run.params(), run.env.reset(jax.random.split(jax.random.key(0), 3))
    drawn, _ = algorithm.decide(run.env, params, world.observation, (), (), jax.random.split(jax.random.key(1), 3))
    acted, _ = algorithm.act(run.env, params, world.observation, jax.random.split(jax.random.key(1), 3))
    np.testing.assert_array_equal(drawn, acted)
    likeliest, _ = algorithm.decide(run.env, params, world.observation, (), (), None)
    moved = params | {"moments": params["moments"]._replace(mean=params["moments"].mean + 1.0)}
    elsewhere, _ = algorithm.decide(run.env, moved, world.observation, (), (), None)
    assert not np.allclose(likeliest, elsewhere)


@pytest.mark.full
def test_nothing_is_compiled_twice(caplog: pytest.LogCaptureFixture) -> None:
    algorithm, env = PPO(**SMALL), ProbeTruncation(max_steps=9)
    params = untrained(algorithm, env)
    with jax.log_compiles():
        evaluate(algorithm, env, params, 6)
        assert "_advance" in caplog.text
        caplog.clear()
        evaluate(PPO(**SMALL), ProbeTruncation(max_steps=9), jax.tree.map(lambda x: x + 1, params), 6, seed=5)
        assert "_advance" not in caplog.text
        assert "_start" not in caplog.text


@pytest.mark.full
def test_endless_episodes_are_truncated_and_counted() -> None:
    env = make("host_envs:Counter", EnvOptions(env_mode="serial"))
    evaluation = evaluate_untrained(A2C(**SMALL), env, episodes=2, max_steps=12)
    assert (evaluation.unfinished, evaluation.lengths.tolist()) == (2, [12, 12])
    evaluation = evaluate_untrained(A2C(**SMALL), ProbeTruncation(max_steps=50), episodes=2, max_steps=12)
    assert (evaluation.unfinished, evaluation.lengths.tolist(), evaluation.returns.tolist()) == (2, [12, 12], [12, 12])


def test_the_interval() -> None:
    returns = np.random.default_rng(0).normal(10.0, 2.0, 400)
    evaluation = Evaluation(returns, returns, 0, True)
    low, high = evaluation.interval
    assert low < evaluation.mean < high
    expected = 1.96 * evaluation.std / np.sqrt(400)
    assert abs((high - low) / 2 - expected) < 0.1 * expected
    assert Evaluation(returns[:1], returns[:1], 0, True).interval == (returns[0], returns[0])


@pytest.mark.full
def test_in_the_background() -> None:
    algorithm, env = PPO(**SMALL), make("CartPole-v1")
    params = untrained(algorithm, env)
    background = BackgroundEvaluation(algorithm, env, episodes=5, seed=3, deterministic=True)
    try:
        assert background.submit(params, steps=100)
        ((steps, evaluation),) = background.finished(wait=True)
        assert background.finished() == []
    finally:
        background.close()
    assert steps == 100
    assert isinstance(evaluation, Evaluation)
    assert evaluation.returns.tolist() == evaluate(algorithm, env, params, 5, 3).returns.tolist()
    assert not [t for t in threading.enumerate() if t.name.startswith("fragmenta-evaluation")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"episodes": 0}, "episodes is 0: it must be at least 1"),
        ({"max_steps": 0}, "max_steps is 0"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_mistakes(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        evaluate_untrained(PPO(**SMALL), ProbeDiscount(), **options)


def test_an_algorithm_without_decide() -> None:
    with pytest.raises(ConfigError, match="Odd does not define how to act after training: implement its decide"):
        evaluate(Odd(), ProbeDiscount(), {})
