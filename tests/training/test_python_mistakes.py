"""Mistakes in a call from Python: one line that says what to do, before anything starts."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fragmenta
from fragmenta import ConfigError, EvaluationOptions, Moment, RunOptions, SaveOptions
from small_algorithm import Reinforce

TINY: dict[str, Any] = {"num_envs": 4, "horizon": 8, "hidden": (8,), "minibatches": 2, "epochs": 1, "total_steps": 320}


class OnlyEvaluations:
    def on_evaluation(self, moment: Moment) -> None: ...


class OnlyCheckpoints:
    """Adds the same metric for every checkpoint."""

    def on_checkpoint(self, moment: Moment) -> None:
        moment.add(kept=1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr": 1e-3}, "unknown hyper-parameter of PPO 'lr': did you mean 'learning_rate'?"),
        ({"steps": 100}, "did you mean 'total_steps'?"),
        ({"callbacks": OnlyEvaluations()}, r"callbacks is .*: give a list, as in callbacks=\[Watch\(\)\]"),
        ({"callbacks": [OnlyEvaluations()]}, "is never called: it needs a run_dir and eval_every"),
        ({"callbacks": [OnlyCheckpoints()]}, "on_checkpoint of callback OnlyCheckpoints is never called: .* a run_dir"),
        ({"stop_at_return": float("nan")}, "stop_at_return is nan: it must be a finite number"),
        ({"stop_at_return": "high"}, "stop_at_return is high: it must be a finite number"),
        ({"seed": -1}, "seed is -1: it must be at least 0"),
        ({"seed": 10**20}, r"seed is 100000000000000000000: it must be at least 0 and less than 2\*\*63"),
        ({"learning_rate": float("inf")}, "learning_rate is inf: it must be finite"),
    ],
)
def test_it_is_refused_in_one_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fragmenta.train("ppo", "CartPole-v1", **TINY | arguments)


def test_a_whole_number_may_be_written_as_a_float() -> None:
    result = fragmenta.train("ppo", "CartPole-v1", **TINY | {"total_steps": 3.2e2}, progress=False)
    assert result.summary["total_steps"] == 320
    with pytest.raises(ConfigError, match=r"total_steps is 320\.5: it must be a whole number"):
        fragmenta.train("ppo", "CartPole-v1", **TINY | {"total_steps": 320.5})


@pytest.mark.full
def test_a_checkpoint_may_be_given_as_a_number(tmp_path: Path) -> None:
    options = RunOptions(saving=SaveOptions(checkpoint_every=5))
    fragmenta.train("ppo", "CartPole-v1", run_dir=tmp_path / "run", options=options, progress=False, **TINY)
    assert fragmenta.load(tmp_path / "run", checkpoint=5).steps() == 5 * 32
    assert fragmenta.resume(tmp_path / "run", checkpoint=5, progress=False).summary["total_steps"] == 320


@pytest.mark.full
def test_a_callback_adds_the_same_metric_for_every_checkpoint(tmp_path: Path) -> None:
    options = RunOptions(saving=SaveOptions(checkpoint_every=1), evaluation=EvaluationOptions(eval_every=5))
    longer = TINY | {"total_steps": 100 * 32}
    result = fragmenta.train(
        "ppo", "CartPole-v1", run_dir=tmp_path / "run", callbacks=[OnlyCheckpoints()], options=options, **longer
    )
    assert sum("kept" in record for record in result.metrics) > 1


@pytest.mark.parametrize("observation", [(np.zeros(4, np.float32), {}), [[0.0] * 4, [1.0]]])
def test_an_observation_of_no_shape_is_one_line(observation: Any) -> None:
    result = fragmenta.train("ppo", "CartPole-v1", progress=False, **TINY)
    hint = "reset.. returns a pair" if isinstance(observation, tuple) else "inhomogeneous"
    with pytest.raises(ConfigError, match=hint):
        result.predict(observation)


@pytest.mark.full
def test_agents_that_are_not_active_are_masked() -> None:
    result = fragmenta.train(fragmenta.MAPPO(num_envs=2, horizon=10, hidden=(8,), total_steps=20), "ProbeTeam")
    env = fragmenta.make("ProbeTeam")
    shape = env.observation_space.shape  # pyright: ignore[reportAttributeAccessIssue]
    observation = np.random.default_rng(0).normal(size=(64, env.num_agents, *shape)).astype(np.float32)
    nobody = np.zeros((64, env.num_agents), bool)
    masked, _ = result.predict(observation, alive=nobody)
    np.testing.assert_array_equal(masked, result.predict(np.zeros_like(observation))[0])
    with pytest.raises(ConfigError, match=r"alive has shape \(7,\): expected"):
        result.predict(observation, alive=np.ones(7, bool))


@dataclasses.dataclass(frozen=True)
class WithoutParams(Reinforce):
    """Does not say where its parameters are, and its state has no learner."""

    def params(self, state: Any) -> Any:
        return fragmenta.Algorithm.params(self, state)


def test_an_algorithm_must_say_where_its_parameters_are() -> None:
    with pytest.raises(
        ConfigError, match=r"the state of WithoutParams has no learner \(world, params, keys, count\): implement"
    ):
        fragmenta.train(WithoutParams(), "CartPole-v1", total_steps=320)


def test_several_seeds_on_the_host_are_several_runs() -> None:
    with pytest.raises(ConfigError, match="gymnasium:CartPole-v1 is stepped on the host: start 2 runs"):
        fragmenta.train("ppo", "gymnasium:CartPole-v1", seeds=2, **TINY)
