"""Evaluations during training: they change nothing, and a failing one does no harm."""

import json
from pathlib import Path
from typing import Any

import jax
import pytest

import fragmenta
from fragmenta.envs.classic import CartPole
from fragmenta.evaluation.evaluate import evaluate
from fragmenta.runs.checkpoints import CheckpointFolder

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


def test_the_end_is_evaluated_once_whatever_the_period(tmp_path: Path) -> None:
    for every, iterations in ((3, [3, 6, 8]), (4, [4, 8]), (100, [8])):
        options = fragmenta.RunOptions(evaluation=fragmenta.EvaluationOptions(eval_every=every, eval_episodes=2))
        algorithm = fragmenta.A2C(**SMALL, total_steps=8 * 32)
        fragmenta.train(algorithm, "CartPole-v1", run_dir=tmp_path / str(every), options=options, progress=False)
        evaluated = [record["iteration"] for record in records(tmp_path / str(every))]
        assert evaluated[-1] == 8
        assert len(set(evaluated)) == len(evaluated)
        assert set(evaluated) <= set(iterations), "others may be skipped, because training does not wait"


@pytest.mark.full
def test_evaluation_chooses_the_best_state_also_after_a_resume(tmp_path: Path) -> None:
    run, saving = tmp_path / "run", fragmenta.SaveOptions(keep_last=1)
    evaluation = fragmenta.EvaluationOptions(eval_every=2, eval_episodes=4)
    options = fragmenta.RunOptions(saving=saving, evaluation=evaluation)
    algorithm = fragmenta.A2C(**SMALL, total_steps=20 * 32, learning_rate=0.01)
    fragmenta.train(algorithm, "CartPole-v1", run_dir=run, options=options, progress=False)
    folder = CheckpointFolder(run / "checkpoints")
    before = folder.best()
    fragmenta.resume(run, total_steps=60 * 32, progress=False)
    best, evaluations = folder.best(), records(run)
    assert before is not None
    assert best is not None
    assert best.measure == "evaluation"
    assert best.score == max(record["return_mean"] for record in evaluations) >= before.score
    (first, *_) = [r for r in evaluations if r["return_mean"] == best.score]
    assert best.iteration == first["iteration"], "an equal one later does not replace it"
    chosen = fragmenta.load(run, checkpoint="best")
    again = evaluate(chosen.algorithm, chosen.env, chosen.params(), 4, seed=0)
    assert again.mean == pytest.approx(best.score)


class OnlyInFours(CartPole):
    """Fails to trace with three environments, so that an evaluation of three episodes fails."""

    def step(self, world: fragmenta.World, action: jax.Array) -> Any:
        if action.shape[0] == 3:
            raise RuntimeError("the screen\n is dark")
        return super().step(world, action)


STEADY = fragmenta.EnvOptions(env_args='{"fault": "raise", "at": 30}', env_mode="serial")


@pytest.mark.full
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
