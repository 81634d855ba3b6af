"""Several seeds as one program: each equals a separate run."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import pytest
from safetensors.numpy import load_file

import fragmenta
from fragmenta import A2C, PPO
from fragmenta.cli.main import main
from fragmenta.errors import ConfigError
from fragmenta.pictures.run_files import read_run_files, recent_returns, series
from fragmenta.runs.checkpoints import CheckpointFolder
from fragmenta.runs.run_directory import read_records
from helpers import assert_same, cpu_cluster

SMALL: dict[str, Any] = {"num_envs": 4, "horizon": 8, "hidden": (8,), "total_steps": 320}
QUICK = ["train", "ppo", "CartPole-v1", "--num-envs", "4", "--horizon", "8", "--hidden", "8", "--epochs", "1"]
QUICK += ["--minibatches", "2", "--total-steps", "320"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("algorithm", "env"),
    [
        (A2C(**SMALL), "CartPole-v1"),
        pytest.param(
            PPO(epochs=1, minibatches=2, normalize_observations=True, **SMALL), "CartPole-v1", marks=pytest.mark.full
        ),
    ],
)
def test_every_seed_equals_a_separate_run(algorithm: fragmenta.Algorithm, env: str) -> None:
    together = fragmenta.train(algorithm, env, seed=3, seeds=2)
    for i in range(2):
        alone = fragmenta.train(algorithm, env, seed=3 + i)
        assert_same(alone.params, jax.tree.map(lambda leaf, i=i: leaf[i], together.params), 1e-5)
        per_seed = together.summary["per_seed"][i]
        assert per_seed["seed"] == 3 + i
        assert per_seed["return_mean"] == pytest.approx(alone.summary["return_mean"], rel=1e-5)
        for record, expected in zip(together.metrics, alone.metrics, strict=True):
            assert record["per_seed"]["entropy"][i] == pytest.approx(expected["entropy"], rel=1e-4)
            assert record["per_seed"]["episodes"][i] == expected["episodes"]


@pytest.mark.full
def test_replicas_of_several_seeds() -> None:
    algorithm = PPO(epochs=1, minibatches=2, **SMALL)
    one = fragmenta.train(algorithm, "CartPole-v1", seeds=2)
    two = fragmenta.train(
        algorithm, "CartPole-v1", seeds=2, cluster=cpu_cluster(2, 2), options=fragmenta.RunOptions(merge=False)
    )
    assert_same(one.params, two.params, 1e-5)


@pytest.mark.full
def test_every_seed_has_its_own_run_directory(tmp_path: Path, capsys: Any) -> None:
    run = tmp_path / "run"
    assert main([*QUICK, "--seed", "7", "--seeds", "2", "--run-dir", str(run), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert [per_seed["seed"] for per_seed in summary["per_seed"]] == [7, 8]
    assert not (run / "params.safetensors").exists(), "parameters are per seed"
    for per_seed in summary["per_seed"]:
        directory = run / f"seed-{per_seed['seed']}"
        seed_summary = json.loads((directory / "summary.json").read_text())
        assert (seed_summary["seed"], seed_summary["params_sha256"]) == (per_seed["seed"], per_seed["params_sha256"])
        assert json.loads((directory / "config.json").read_text())["seed"] == per_seed["seed"]
        records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
        assert [record["steps"] for record in records] == list(range(32, 321, 32))
        assert isinstance(records[0]["entropy"], float)
        assert load_file(directory / "params.safetensors")["policy.params.kernel_0"].ndim == 2
    combined = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert combined[0]["entropy"] == pytest.approx(sum(combined[0]["per_seed"]["entropy"]) / 2)


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three seeds that was evaluated during training."""
    run = tmp_path_factory.mktemp("runs") / "seeded"
    evaluated = ["--eval-every", "5", "--eval-episodes", "2"]
    assert main([*QUICK, "--seed", "7", "--seeds", "3", "--run-dir", str(run), *evaluated]) == 0
    return run


@pytest.mark.full
def test_seeds_are_evaluated_during_training_and_choose_the_best_state(seeded: Path) -> None:
    records = read_records(seeded / "evaluations.jsonl")
    assert records[0]["iteration"] == 5
    for record in records:
        means = record["per_seed"]["return_mean"]
        assert record["return_mean"] == pytest.approx(sum(means) / 3)
        assert (record["return_low"], record["return_high"]) == (min(means), max(means))
    for i, seed in enumerate((7, 8, 9)):
        alone = read_records(seeded / f"seed-{seed}" / "evaluations.jsonl")
        assert [r["return_mean"] for r in alone] == [r["per_seed"]["return_mean"][i] for r in records]
    best = CheckpointFolder(seeded / "checkpoints").best()
    assert best is not None
    assert (best.measure, best.score) == ("evaluation", max(record["return_mean"] for record in records))


@pytest.mark.full
def test_a_seed_is_opened_at_a_checkpoint_of_all_of_them(seeded: Path) -> None:
    together = fragmenta.load(seeded, checkpoint="best").params()
    for i, seed in enumerate((7, 8, 9)):
        alone = fragmenta.load(seeded / f"seed-{seed}", checkpoint="best").params()
        assert_same(alone, jax.tree.map(lambda leaf, i=i: leaf[i], together), 0)
    last = fragmenta.load(seeded / "seed-8", checkpoint="last").params()
    assert_same(last, fragmenta.load(seeded / "seed-8").params(), 0)
    with pytest.raises(ConfigError, match="has no checkpoint '77'"):
        fragmenta.load(seeded / "seed-8", checkpoint=77).params()


@pytest.mark.full
def test_all_seeds_of_a_run_are_evaluated(seeded: Path, tmp_path: Path, capsys: Any) -> None:
    run = tmp_path / "run"
    shutil.copytree(seeded, run)
    assert main(["eval", str(run), "--episodes", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition("(")[2] for line in lines[1:4]] == ["seed 7)", "seed 8)", "seed 9)"]
    assert lines[4].split()[:3] == ["3", "seeds", "return"]
    assert main(["eval", str(run / "seed-8"), "--episodes", "4", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)[0]
    together = read_records(run / "evaluations.jsonl")[-2]
    assert together["per_seed"]["return_mean"][1] == pytest.approx(alone["return_mean"])
    assert main(["eval", str(run), "--episodes", "4", "--checkpoint", "best"]) == 0
    assert "by the mean return of its evaluation" in capsys.readouterr().err
    for command in ("play", "export"):
        assert main([command, str(run)]) == 2
        assert f"'{run}' has 3 seeds: choose one, as in '{run}/seed-7'" in capsys.readouterr().err
    assert main(["play", str(run / "seed-7"), "--episodes", "1", "--max-steps", "5"]) == 0


@pytest.mark.full
def test_seeds_have_bands_in_the_report_and_are_a_group_in_a_comparison(
    seeded: Path, tmp_path: Path, capsys: Any
) -> None:
    other = tmp_path / "other"
    changed = ["--learning-rate", "0.01", "--seeds", "2", "--run-dir", str(other)]
    assert main([*QUICK, *changed]) == 0
    assert main(["report", str(seeded), str(other), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "seeds 7 to 9" in page
    large = page.partition('class="chart large"')[2].partition("</figure>")[0]
    assert large.count('class="band"') == 2, "one per run"
    capsys.readouterr()
    picture = tmp_path / "picture.png"
    assert main(["compare", str(seeded), str(other), "--out", str(picture)]) == 0
    text = capsys.readouterr().out
    counts = [line.split("│")[2].strip() for line in text.splitlines() if "learning_rate" in line]
    assert counts == ["3", "2"]
    assert " to " in text, "an interval over the seeds"
    assert picture.exists()


def test_a_band_is_the_range_of_the_seeds(seeded: Path) -> None:
    run = read_run_files(seeded)
    entropy = series(run, "entropy")
    assert entropy.low is not None
    assert entropy.high is not None
    values = run.records[3]["per_seed"]["entropy"]
    assert (entropy.low[3], entropy.high[3]) == (min(values), max(values))
    assert entropy.values[3] == pytest.approx(sum(values) / 3)
    finals = [recent_returns(one).values[-1] for one in run.by_seed]
    assert finals == pytest.approx([summary["return_mean"] for summary in run.summary["per_seed"]])
    assert recent_returns(run).values[-1] == pytest.approx(sum(finals) / 3)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--seeds", "2", "--policy", "central"], "policy 'central' splits it: use fused, or start 2 runs"),
        (["--seeds", "0"], "seeds is 0: it must be at least 1"),
    ],
)
def test_mistakes_get_one_line(flags: list[str], message: str, capsys: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*QUICK, *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())
