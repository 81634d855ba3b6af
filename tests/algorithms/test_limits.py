"""Hyper-parameters outside their valid range are refused before anything starts, from Python as well."""

import dataclasses
import math
from typing import Any

import pytest

import fragmenta
from fragmenta import RunOptions, SaveOptions
from fragmenta.algorithms import ALGORITHMS

WRONG = {
    "num_envs": [0, -1, 2.0],
    "total_steps": [0, 1e6],
    "horizon": [0, True],
    "learning_rate": [-1e-3, math.nan, math.inf, "0.1"],
    "gamma": [1.01, -0.1, math.nan],
    "entropy_cost": [-0.01],
    "value_cost": [-0.5],
    "max_grad_norm": [0.0, -1.0],
    "hidden": [(0,), (64, -1), (64, 1.5)],
    "critic_hidden": [(0,), (64, -1)],
    "epochs": [0],
    "minibatches": [0, -8],
    "gae_lambda": [1.5, -0.1],
    "return_lambda": [1.5, -0.1],
    "clip": [0.0, -0.2],
    "memory": [0],
    "trace_decay": [2.0],
    "clip_rho": [0.0],
    "clip_c": [-1.0],
    "batch_size": [0],
    "buffer_size": [0, 1.5],
    "learning_starts": [-1],
    "updates": [0],
    "n_step": [0],
    "priority_exponent": [-0.1, 1.1],
    "importance": [2.0],
    "tau": [0.0, 1.5],
    "target_every": [0],
    "exploration": [1.5],
    "final_exploration": [-0.1],
    "exploration_share": [1.5],
    "atoms": [0],
    "critics": [0],
    "temperature": [0.0],
    "exploration_noise": [-0.1],
    "largest_noise": [-0.1],
    "target_noise": [-0.1],
    "target_noise_clip": [-0.1],
    "policy_delay": [0],
    "mixing": [0],
    "hypernetwork": [0],
    "softness": [0.0],
    "logit_cost": [-1e-3],
    "window": [0],
    "burn_in": [-1, 1.5],
    "length": [0],
    "peak_share": [1.5],
    "entropy_share": [-0.1, 2.0],
}
UNLIMITED = {
    "compute",
    "normalize_observations",
    "normalize_rewards",
    "anneal",
    "clip_value",
    "shared",
    "normalize_advantages",
    "prioritized",
    "ladder",
    "double",
    "dueling",
    "noisy",
    "distribution",
    "combine",
    "value_range",
    "layer_norm",
    "learn_temperature",
    "network",
    "optimizer",
    "schedule",
    "critic_only",
    "observation_function",
    "reward_function",
    "cell",
    "rescale",
    "baseline",
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_values_outside_their_range_are_refused(name: str) -> None:
    env = "ProbeTeam" if name in ("mappo", "ippo", "vdn", "qmix", "maddpg") else "CartPole-v1"
    for field in dataclasses.fields(ALGORITHMS[name]):
        assert field.name in UNLIMITED or field.name in WRONG, f"{field.name} is not tested"
        for value in WRONG.get(field.name, []):
            settings: dict[str, Any] = {field.name: value}
            with pytest.raises(fragmenta.ConfigError, match=rf"^{field.name} is .*: .*must be "):
                fragmenta.train(ALGORITHMS[name](**settings), env)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gamma": 1.5}, "gamma is 1.5: it must be from 0 to 1"),
        ({"epochs": 0}, "epochs is 0: it must be at least 1"),
        ({"total_steps": 1e6}, "total_steps is 1000000.0: it must be a whole number"),
        ({"learning_rate": "0.1"}, "learning_rate is '0.1': it must be a number"),
        ({"hidden": (64, 0)}, r"hidden is \(64, 0\): each width must be at least 1"),
        ({"clip": 0.0}, "clip is 0.0: it must be more than 0"),
    ],
)
def test_the_message_names_value_and_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(fragmenta.ConfigError, match=f"^{message}$"):
        fragmenta.train(fragmenta.PPO(**settings), "CartPole-v1")


def test_what_the_user_named_is_in_the_message() -> None:
    with pytest.raises(fragmenta.ConfigError, match=r"tau is 0\.0: it must be more than 0 and at most 1"):
        fragmenta.train("dqn", "CartPole-v1", tau=0.0)
    with pytest.raises(fragmenta.ConfigError, match=r"R2D2 does not support action space .*: .* Discrete"):
        fragmenta.train("r2d2", "Pendulum-v1")
    with pytest.raises(fragmenta.ConfigError, match="ladder and noisy are two ways to explore"):
        fragmenta.train("dqn", "CartPole-v1", ladder=True, noisy=True)
    saving = RunOptions(saving=SaveOptions(save_replay=True))
    with pytest.raises(fragmenta.ConfigError, match="save_replay is for algorithms with a replay, which PQN has not"):
        fragmenta.train("pqn", "CartPole-v1", options=saving)


def test_a_run_too_short_to_learn_anything_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    said = "nothing is learned: learning_starts is 500, total_steps 96"
    for steps in (96, 500):
        fragmenta.train("dqn", "CartPole-v1", total_steps=steps, learning_starts=500, hidden=(4,), updates=1)
        assert (said in capsys.readouterr().err) == (steps == 96)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_defaults_are_those_of_the_class_that_says_so_last(name: str) -> None:
    """A dataclass takes all fields of a base class, inherited ones too, so a second base can undo the first one's."""
    kind = ALGORITHMS[name]
    undone = [field.name for field in dataclasses.fields(kind) if field.default != getattr(kind, field.name)]
    assert not undone
