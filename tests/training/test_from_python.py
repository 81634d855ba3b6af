"""`fragmenta.train` with algorithms and environments as they are at hand in Python."""

import dataclasses
import json
import re
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import fragmenta
from fragmenta import PPO, ConfigError, EnvOptions, RunOptions
from host_envs import Counter

SMALL = {"num_envs": 2, "horizon": 16, "hidden": (8,), "minibatches": 2, "epochs": 1, "total_steps": 64}
TINY = PPO(**SMALL)


class Walk(gymnasium.Env):
    """Ends after `ends` steps; every step pays what the environment was made with."""

    def __init__(self, ends: int = 5, pay: float = 1.0) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.ends, self.pay, self.steps = ends, pay, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps += 1
        return np.zeros(2, np.float32), self.pay, self.steps == self.ends, False, {}


class Doubled(gymnasium.RewardWrapper):
    """A wrapper that does not record its arguments, so that Gymnasium cannot make it again."""

    def reward(self, reward: Any) -> float:
        return 2.0 * float(reward)


def holding_a_lock(pay: float = 1.0) -> Walk:
    env = Walk(pay=pay)
    env.lock = threading.Lock()  # pyright: ignore[reportAttributeAccessIssue]
    return env


def trained(env: Any, **more: Any) -> fragmenta.Result:
    return fragmenta.train("ppo", env, **SMALL | more)


@pytest.mark.full
@pytest.mark.brief("PPO0")
@pytest.mark.parametrize(
    "algorithm", ["PPO", pytest.param("fragmenta.algorithms.ppo:PPO", marks=pytest.mark.full), PPO, PPO()]
)
def test_an_algorithm_is_a_name_a_class_or_an_instance(algorithm: Any) -> None:
    result = fragmenta.train(algorithm, "CartPole-v1", **SMALL)
    expected = fragmenta.train(TINY, "CartPole-v1")
    assert result.summary["params_sha256"] == expected.summary["params_sha256"]


@pytest.mark.brief("serial-object")
@pytest.mark.parametrize(
    ("env", "returns"),
    [
        (Walk, 5.0),
        (Walk(ends=4), 4.0),
        (lambda: Walk(pay=3.0), 15.0),
        (Doubled(Walk()), 10.0),
        (gymnasium.wrappers.TransformReward(gymnasium.make("CartPole-v1", max_episode_steps=3), lambda _: 7.0), 21.0),
        (gymnasium.make("CartPole-v1", max_episode_steps=3), 3.0),
    ],
    ids=["class", "object", "function", "wrapped object", "with wrappers of Gymnasium", "made by Gymnasium"],
)
@pytest.mark.parametrize("mode", ["serial", pytest.param("processes", marks=pytest.mark.full)])
def test_an_environment_is_any_object_that_makes_or_is_one(env: Any, returns: float, mode: str) -> None:
    result = trained(env, options=RunOptions(env=EnvOptions(env_mode=mode)))
    assert result.summary["return_mean"] == returns


@pytest.mark.full
def test_environments_from_python_give_the_result_of_their_names() -> None:
    named = trained("gymnasium:CartPole-v1").summary["params_sha256"]
    for env in (gymnasium.make("CartPole-v1"), gymnasium.make_vec("CartPole-v1", num_envs=2)):
        assert trained(env).summary["params_sha256"] == named


@pytest.mark.full
@pytest.mark.parametrize("mode", ["sync", "vector_entry_point"])
def test_a_vector_says_how_many_environments_there_are(mode: str) -> None:
    vector = gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode=mode)
    options = {name: value for name, value in SMALL.items() if name != "num_envs"} | {"total_steps": 48}
    try:
        assert fragmenta.train("ppo", vector, **options).summary["iterations"] == 1
        with pytest.raises(ConfigError, match="num_envs is 2, but env is a vector of 3 environments: use num_envs=3"):
            fragmenta.train(TINY, vector)
    finally:
        vector.close()


@pytest.mark.full
def test_a_vector_of_functions_of_ones_own() -> None:
    vector = gymnasium.vector.SyncVectorEnv([lambda: Walk(pay=2.0)] * 2)
    assert trained(vector).summary["return_mean"] == 10.0


@pytest.mark.full
def test_an_environment_that_cannot_be_copied_is_stepped_in_this_process() -> None:
    env = holding_a_lock(pay=2.0)
    options = {name: value for name, value in SMALL.items() if name != "num_envs"}
    result = fragmenta.train("ppo", env, **options)
    assert result.summary["return_mean"] == 10.0
    assert env.steps > 0, "the object itself was stepped"
    where = fragmenta.make(env).where(1, 1)
    assert "one after the other in this process, because it cannot be copied to another (cannot pickle" in where
    with pytest.raises(ConfigError, match="num_envs is 2, but env is one environment that cannot be copied"):
        fragmenta.train(TINY, env)
    with pytest.raises(ConfigError, match=r"cannot be copied .* to the processes of engine 'processes'"):
        fragmenta.train("ppo", env, engine="processes", **options)
    with pytest.raises(ConfigError, match=r"cannot be copied to another process .*env_mode 'serial'"):
        fragmenta.make(env, EnvOptions(env_mode="processes"))


@pytest.mark.full
def test_a_function_that_cannot_be_copied_makes_several_in_this_process() -> None:
    lock = threading.Lock()

    def make() -> Walk:
        with lock:
            return Walk(pay=2.0)

    assert trained(make).summary["return_mean"] == 10.0


@pytest.mark.full
def test_an_object_is_copied_to_environment_processes() -> None:
    options = RunOptions(env=EnvOptions(env_mode="processes"))
    assert trained(Doubled(Walk(ends=4)), options=options).summary["return_mean"] == 8.0


@pytest.mark.full
@pytest.mark.parametrize("engine", ["processes", "ray"])
@pytest.mark.parametrize("mode", ["serial", "processes"])
def test_an_object_trains_in_the_processes_of_an_engine(engine: str, mode: str) -> None:
    options = RunOptions(env=EnvOptions(env_mode=mode))
    local = trained(Walk(pay=2.0), policy="single_learner_coarse")
    apart = trained(Walk(pay=2.0), policy="single_learner_coarse", engine=engine, options=options)
    assert apart.summary["params_sha256"] == local.summary["params_sha256"]
    assert apart.summary["return_mean"] == 10.0


@pytest.mark.full
def test_a_class_of_a_jax_environment(tmp_path: Path) -> None:
    result = fragmenta.train(TINY, type(fragmenta.make("CartPole-v1")), run_dir=tmp_path / "run")
    assert result.summary["env"] == "CartPole-v1"


@pytest.mark.full
def test_options_apply_to_objects_as_to_names() -> None:
    options = EnvOptions(env_args={"ends": 3}, stack=2)
    assert trained(Walk, options=RunOptions(env=options)).summary["return_mean"] == 3.0
    assert fragmenta.make(Walk, options).observation_space.shape == (2, 2)  # pyright: ignore
    assert EnvOptions(env_args={"ends": 3}) == EnvOptions(env_args='{"ends": 3}')


@pytest.mark.full
def test_a_run_is_opened_again_by_name_where_there_is_one(tmp_path: Path) -> None:
    fragmenta.train(TINY, Counter, run_dir=tmp_path / "named", options=RunOptions(env=EnvOptions(env_args={"ends": 5})))
    assert fragmenta.load(tmp_path / "named").env.title == "host_envs:Counter"
    fragmenta.train(TINY, lambda: Walk(ends=3), run_dir=tmp_path / "nameless")
    assert json.loads((tmp_path / "nameless" / "config.json").read_text())["env_options"] is None
    with pytest.raises(ConfigError, match=r"created in Python: pass it, as in fragmenta.load\(path, env=\.\.\.\)"):
        fragmenta.load(tmp_path / "nameless")
    resumed = fragmenta.resume(tmp_path / "nameless", env=lambda: Walk(ends=3), total_steps=128)
    assert resumed.summary["total_steps"] == 128


@dataclasses.dataclass(frozen=True)
class NeedsMore(PPO):
    extra: int = dataclasses.field(kw_only=True)


@pytest.mark.parametrize(
    ("algorithm", "env", "options", "message"),
    [
        ("ppoo", "CartPole-v1", {}, "unknown algorithm 'ppoo': did you mean 'ppo'"),
        (
            "ppo",
            "CartPole-v1",
            {"learning_rat": 1.0},
            "unknown hyper-parameter of PPO 'learning_rat': did you mean 'le",
        ),
        (PPO(), "CartPole-v1", {"horizn": 1}, "unknown hyper-parameter of PPO 'horizn': did you mean 'horizon'"),
        (NeedsMore, "CartPole-v1", {}, "cannot make NeedsMore: .*'extra'"),
        (Walk, "CartPole-v1", {}, "'Walk' is not an algorithm class: derive it from fragmenta.Algorithm"),
        ("ppo", 3, {}, "env is 3, of type int: give a name, a fragmenta.Environment, a gymnasium.Env"),
        ("ppo", lambda: 3, {}, "<lambda> is int, not a gymnasium.Env"),
        (
            "ppo",
            Walk(),
            {"options": RunOptions(env=EnvOptions(env_args={"ends": 3}))},
            "env_args is for a class or a f",
        ),
        ("ppo", Walk, {"options": RunOptions(env=EnvOptions(env_args={"end": 3}))}, "wrong arguments: .*'end'"),
        (
            "ppo",
            gymnasium.wrappers.vector.RecordEpisodeStatistics(gymnasium.make_vec("CartPole-v1", num_envs=2)),
            {},
            "RecordEpisodeStatistics wraps a vector, but environments are stepped one by one: wrap the single",
        ),
    ],
)
def test_mistakes_are_one_line(algorithm: Any, env: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        fragmenta.train(algorithm, env, **options)
    assert "\n" not in str(error.value)


def test_arguments_that_are_not_plain_data_are_refused() -> None:
    with pytest.raises(ConfigError, match=re.escape("which is not plain data")):
        EnvOptions(env_args={"space": object()})
