"""Several seeds as one program: each equals a separate run."""

import json
from pathlib import Path
from typing import Any

import jax
import pytest
from safetensors.numpy import load_file

import fragmenta
from fragmenta import A2C, PPO
from fragmenta.cli.main import main
from helpers import assert_same, cpu_cluster

SMALL: dict[str, Any] = {"num_envs": 4, "horizon": 8, "hidden": (8,), "total_steps": 320}
QUICK = ["train", "ppo", "CartPole-v1", "--num-envs", "4", "--horizon", "8", "--hidden", "8", "--epochs", "1"]
QUICK += ["--minibatches", "2", "--total-steps", "320"]


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
