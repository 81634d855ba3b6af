"""Every kind of learning, short: three seeds as one program, each of which must learn. `make learn` takes hours."""

from typing import Any

import pytest

import fragmenta
from fragmenta import DQN, IPPO, PQN, QMIX, R2D2, VDN, Algorithm

REPLAY: dict[str, Any] = {
    "batch_size": 64,
    "buffer_size": 4_000,
    "learning_starts": 500,
    "updates": 4,
    "learning_rate": 2e-3,
    "anneal": False,
    "gamma": 0.9,
    "hidden": (32, 32),
    "target_every": 50,
}
TEAM = "1, 2, 3 and 4 steps, a reward of 1 each: 2.5 at most"


def returns(algorithm: Algorithm, env: str, steps: int) -> list[float]:
    result = fragmenta.train(algorithm, env, total_steps=steps, seeds=3, progress=False)
    return [summary["return_mean"] for summary in result.summary["per_seed"]]


@pytest.mark.parametrize(
    ("algorithm", "steps", "least"), [(DQN(hidden=(64, 64)), 60_000, 100), (PQN(hidden=(64, 64)), 100_000, 60)]
)
def test_a_pole_is_held(algorithm: Algorithm, steps: int, least: float) -> None:
    assert min(returns(algorithm, "CartPole-v1", steps)) > least, "chance is 22"


def test_what_r2d2_remembers_is_lost_on_dqn() -> None:
    small: dict[str, Any] = {"hidden": (32,), "double": False, "dueling": False}
    assert min(returns(R2D2(memory=32, prioritized=False, **small), "ProbeMemory", 12_000)) > 0.7, "1 is the most"
    assert max(map(abs, returns(DQN(n_step=1, **small), "ProbeMemory", 12_000))) < 0.35, "nothing to be seen: chance"


@pytest.mark.parametrize(
    "algorithm",
    [
        VDN(**REPLAY),
        pytest.param(QMIX(**REPLAY), marks=pytest.mark.full),
        IPPO(num_envs=16, horizon=16, epochs=4, minibatches=2, hidden=(32,), gamma=0.9, learning_rate=5e-3),
    ],
    ids=["vdn", "qmix", "ippo"],
)
def test_a_team_learns(algorithm: Algorithm) -> None:
    assert min(returns(algorithm, "ProbeTeam", 12_800)) > 2.2, TEAM
