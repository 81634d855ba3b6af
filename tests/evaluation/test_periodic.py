"""Evaluations during training: they change nothing, and a failing one does no harm."""

import json
from pathlib import Path
from typing import Any

import jax
import pytest

import fragmenta
from fragmenta.envs.classic import CartPole

SMALL: dict[str, Any] = {"num_envs": 4, "horizon": 8, "hidden": (8,)}


def records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]


def test_evaluating_during_training_changes_nothing(tmp_path: Path) -> None:
    algorithm = fragmenta.A2C(**SMALL, total_steps=20 * 32)
    alone = fragmenta.train(algorithm, "CartPole-v1")
    options = fragmenta.EvaluationOptions(eval_every=5, eval_episodes=2)
    result = fragmenta.train(
        algorithm, "CartPole-v1", run_dir=tmp_path / "run", options=fragmenta.RunOptions(evaluation=options)
    )
    assert result.summary["params_sha256"] == alone.summary["params_sha256"]
    evaluations = records(tmp_path / "run")
    assert evaluations
    assert all(e["iteration"] % 5 == 0 and e["steps"] == 32 * e["iteration"] for e in evaluations)


class OnlyInFours(CartPole):
    """Fails to trace with three environments, so that an evaluation of three episodes fails."""

    def step(self, world: fragmenta.World, action: jax.Array) -> Any:
        if action.shape[0] == 3:
            raise RuntimeError("the screen\n is dark")
        return super().step(world, action)


STEADY = fragmenta.EnvOptions(env_args='{"fault": "raise", "at": 30}', env_mode="serial")


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (OnlyInFours(), "the screen is dark"),
        # Training ends after 24 steps of its only episode; an evaluation takes more and hits the fault.
        (fragmenta.make("faulty_envs:Steady", STEADY), "the motor is stuck"),
    ],
)
def test_an_evaluation_that_fails_does_not_end_the_run(
    env: fragmenta.Environment, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    algorithm, run = fragmenta.A2C(**SMALL, total_steps=3 * 32), tmp_path / "run"
    alone = fragmenta.train(algorithm, env, progress=False)
    options = fragmenta.RunOptions(evaluation=fragmenta.EvaluationOptions(eval_every=1, eval_episodes=3))
    result = fragmenta.train(algorithm, env, run_dir=run, options=options, progress=False)
    assert result.summary["params_sha256"] == alone.summary["params_sha256"]
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("fragmenta: the evaluation after 32 steps failed: ")
    assert message in line
    evaluations = records(run)
    assert evaluations[0]["iteration"] == 1
    assert all(message in record["failed"] and "return_mean" not in record for record in evaluations)
    assert (run / "curve.png").exists()
