"""PPO learns: probe environments reach their known values, and CartPole is solved."""

import math

import jax.numpy as jnp
import pytest

import fragmenta
from fragmenta import PPO, make
from fragmenta.algorithms.encoding import Encoded
from fragmenta.runs.episode_statistics import best_return

PROBE = PPO(num_envs=16, horizon=32, minibatches=2, learning_rate=5e-3, gamma=0.9, hidden=(32,), total_steps=60_000)


def encoded(result: fragmenta.Result, observation: float) -> Encoded:
    return PROBE.encode(make("ProbeConstant"), result.params, jnp.asarray([[observation]]))


def value(result: fragmenta.Result, observation: float) -> float:
    return float(PROBE.value(result.params, encoded(result, observation))[0])


def test_probe_constant() -> None:
    assert value(fragmenta.train(PROBE, "ProbeConstant"), 0.0) == pytest.approx(1.0, abs=0.05)


@pytest.mark.full
def test_probe_observation() -> None:
    result = fragmenta.train(PROBE, "ProbeObservation")
    assert value(result, 1.0) == pytest.approx(1.0, abs=0.05)
    assert value(result, -1.0) == pytest.approx(-1.0, abs=0.05)


@pytest.mark.full
def test_probe_discount() -> None:
    result = fragmenta.train(PROBE, "ProbeDiscount")
    assert value(result, 0.0) == pytest.approx(0.9, abs=0.05)
    assert value(result, 1.0) == pytest.approx(1.0, abs=0.05)


@pytest.mark.full
def test_probe_action() -> None:
    result = fragmenta.train(PROBE, "ProbeAction")
    assert result.summary["return_mean"] > 0.95
    for sign, best in ((1.0, 1), (-1.0, 0)):
        policy = PROBE.policy(make("ProbeAction"), result.params, encoded(result, sign))
        assert math.exp(float(policy.log_prob(jnp.asarray([best]))[0])) > 0.95
        assert value(result, sign) == pytest.approx(1.0, abs=0.1)


@pytest.mark.full
def test_probe_truncation() -> None:
    result = fragmenta.train(PROBE, "ProbeTruncation", total_steps=200_000)
    assert value(result, 0.0) == pytest.approx(1 / (1 - 0.9), rel=0.05), "a cut-off episode is worth what comes after"


@pytest.mark.full
@pytest.mark.parametrize("compute", ["float32", pytest.param("bfloat16", marks=pytest.mark.full)])
def test_cartpole_is_solved(compute: str) -> None:
    result = fragmenta.train(PPO(compute=compute), "CartPole-v1", total_steps=976 * 512, seed=1)  # within 500,000
    assert best_return(result.metrics) >= 475


@pytest.mark.full
def test_value_loss_can_be_clipped_and_learning_rate_kept() -> None:
    result = fragmenta.train(PPO(clip_value=True, anneal=False, num_envs=8), "CartPole-v1", total_steps=100_000)
    assert result.summary["return_mean"] > 100


def test_total_steps_may_be_practically_unlimited() -> None:
    tiny = PPO(num_envs=2, horizon=4, hidden=(4,), epochs=1, minibatches=1, total_steps=10**15)
    trace = fragmenta.trace(
        tiny, make("CartPole-v1")
    )  # the learning rate is annealed over more updates than fit into 32 bits
    assert trace.metric_names
