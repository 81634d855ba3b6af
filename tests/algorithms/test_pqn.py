"""PQN reaches the known values of probe environments."""

import jax.numpy as jnp
import pytest

import fragmenta
from fragmenta import PQN, make

PROBE = PQN(
    num_envs=8,
    horizon=16,
    minibatches=2,
    learning_rate=2e-3,
    gamma=0.9,
    hidden=(32,),
    total_steps=30_000,
    final_exploration=0.2,
)


def values(result: fragmenta.Result, env: str, observation: float) -> list[float]:
    algorithm = result.algorithm
    assert isinstance(algorithm, PQN)
    encoded = algorithm.encode(make(env), result.params, jnp.asarray([[observation]]))
    return algorithm.values_of(make(env), result.params, encoded)[0].tolist()


def test_the_better_action_is_found() -> None:
    result = fragmenta.train(PROBE, "ProbeAction", progress=False)
    for sign, best in ((1.0, 1), (-1.0, 0)):
        chosen = values(result, "ProbeAction", sign)
        assert chosen[best] == pytest.approx(1.0, abs=0.1)
        assert chosen[1 - best] == pytest.approx(-1.0, abs=0.1)


@pytest.mark.full
def test_later_rewards_are_discounted() -> None:
    result = fragmenta.train(PROBE, "ProbeDiscount", progress=False)
    assert max(values(result, "ProbeDiscount", 0.0)) == pytest.approx(0.9, abs=0.1)
    assert max(values(result, "ProbeDiscount", 1.0)) == pytest.approx(1.0, abs=0.1)


@pytest.mark.full
def test_a_truncated_episode_is_worth_what_would_come_after() -> None:
    result = fragmenta.train(PROBE, "ProbeTruncation", progress=False, learning_rate=1e-2, total_steps=60_000)
    assert max(values(result, "ProbeTruncation", 0.0)) == pytest.approx(10.0, rel=0.08)


def test_what_it_cannot_train_is_one_line() -> None:
    with pytest.raises(fragmenta.ConfigError, match="one agent with Discrete actions, but Pendulum has 1 with Box"):
        fragmenta.train(PROBE, "Pendulum-v1")
