"""A run that starts from the parameters of another one."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fragmenta
from fragmenta import A2C, PPO, ConfigError
from fragmenta.cli.main import main
from fragmenta.runs.checkpoints import CheckpointFolder
from fragmenta.runs.history import read_history
from helpers import assert_same

SMALL: dict[str, Any] = {"num_envs": 4, "horizon": 8, "hidden": (8,), "total_steps": 128}
STILL = 1e-30
"""A learning rate with which parameters stay as they are."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "source"
    options = fragmenta.RunOptions(saving=fragmenta.SaveOptions(checkpoint_every=1, keep_last=9))
    fragmenta.train(A2C(**SMALL, learning_rate=0.05), "CartPole-v1", run_dir=path, options=options, progress=False)
    return path


def first_of(source: Path) -> str:
    """The first checkpoint that was written: others may have been skipped while it was."""
    return str(int(CheckpointFolder(source / "checkpoints").names()[0]))


def start(source: Any, **settings: Any) -> fragmenta.Result:
    algorithm = A2C(**SMALL, learning_rate=STILL)
    return fragmenta.train(algorithm, "CartPole-v1", start_from=source, progress=False, **settings)


@pytest.mark.full
def test_parameters_are_those_of_the_other_run(source: Path) -> None:
    expected = fragmenta.load(source).params()
    jax.tree.map(np.testing.assert_array_equal, start(source, seed=5).params, expected)


@pytest.mark.full
def test_a_checkpoint_may_be_chosen(source: Path) -> None:
    early = fragmenta.load(source, checkpoint=first_of(source))
    jax.tree.map(np.testing.assert_array_equal, start(early).params, early.params())


@pytest.mark.full
def test_every_seed_starts_from_them(source: Path) -> None:
    expected = fragmenta.load(source).params()
    stacked = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), expected)
    jax.tree.map(np.testing.assert_array_equal, start(source, seeds=2).params, stacked)


@pytest.mark.full
def test_moments_of_observations_come_along(tmp_path: Path) -> None:
    algorithm = PPO(**SMALL, minibatches=2, epochs=1, normalize_observations=True)
    earlier = fragmenta.train(algorithm, "CartPole-v1", run_dir=tmp_path / "a", progress=False)
    later = fragmenta.train(algorithm, "CartPole-v1", start_from=tmp_path / "a", progress=False)
    assert float(later.params["moments"].number) == 2 * float(earlier.params["moments"].number)


@pytest.mark.full
def test_the_command_line_records_where_it_started(source: Path, tmp_path: Path, capsys: Any) -> None:
    run = tmp_path / "run"
    flags = ["--num-envs", "4", "--horizon", "8", "--hidden", "8", "--total-steps", "64"]
    first = first_of(source)
    chosen = ["--start-from", str(source), "--start-checkpoint", first]
    assert main(["train", "a2c", "CartPole-v1", *flags, *chosen, "--run-dir", str(run)]) == 0
    assert f"starts from the parameters of '{source}' after {32 * int(first)} steps" in capsys.readouterr().out
    recorded = json.loads((run / "config.json").read_text())["start_from"]
    assert (recorded["run"], recorded["checkpoint"], recorded["steps"]) == (str(source), first, 32 * int(first))
    assert read_history(run)[0]["start_from"] == recorded
    fragmenta.resume(run, total_steps=128, progress=False)
    assert json.loads((run / "config.json").read_text())["start_from"] == recorded


@pytest.mark.full
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--hidden", "16"], "is float32[8], but the run's settings need float32[16]"),
        (["--hidden", "8", "8"], "has no 'policy.params.bias_2': it belongs to another algorithm or environment"),
        (["--start-checkpoint", "77"], "has no checkpoint '77'"),
    ],
)
def test_parameters_that_do_not_fit_are_one_line(
    flags: list[str], message: str, source: Path, tmp_path: Path, capsys: Any
) -> None:
    small = ["--num-envs", "4", "--horizon", "8", "--hidden", "8", "--run-dir", str(tmp_path / "run")]
    if "--hidden" in flags:
        small = [*small[:4], *small[6:]]
    assert main(["train", "a2c", "CartPole-v1", "--start-from", str(source), *small, *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_without_a_run_is_a_mistake(capsys: Any) -> None:
    assert main(["train", "a2c", "CartPole-v1", "--start-checkpoint", "best"]) == 2
    assert "start_checkpoint is 'best', but there is no run: add --start-from RUN" in capsys.readouterr().err


@dataclasses.dataclass(frozen=True)
class Halved(A2C):
    """Computes what it calls its parameters."""

    def params(self, state: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf / 2, super().params(state))


class Doubling(Halved):
    """Says how to put them back."""

    def with_params(self, state: Any, params: Any) -> Any:
        learner = state.learner._replace(params=jax.tree.map(lambda leaf: 2 * leaf, params))
        return state._replace(learner=learner)


@pytest.mark.full
def test_an_algorithm_that_computes_its_parameters_says_how_to_put_them_back(tmp_path: Path) -> None:
    halved = Halved(**SMALL, learning_rate=STILL)
    fragmenta.train(halved, "CartPole-v1", run_dir=tmp_path / "a", progress=False)
    earlier = fragmenta.load(tmp_path / "a", algorithm=halved)
    with pytest.raises(ConfigError, match=r"Halved.params computes what it returns .*implement its with_params"):
        fragmenta.train(halved, "CartPole-v1", start_from=earlier, progress=False)
    doubling = Doubling(**SMALL, learning_rate=STILL)
    later = fragmenta.train(doubling, "CartPole-v1", seed=1, start_from=earlier, progress=False)
    assert_same(later.params, earlier.params(), 1e-6)


@pytest.mark.full
def test_a_damaged_checkpoint_is_said_at_the_end_too(source: Path, tmp_path: Path, capsys: Any) -> None:
    run = tmp_path / "run"
    shutil.copytree(source, run)
    (run / "params.safetensors").unlink()
    folder = CheckpointFolder(run / "checkpoints")
    (folder.path / folder.names()[-1] / "manifest.json").write_text("{}")
    used = int(folder.names()[-2])
    for arguments in (["eval", str(run), "--episodes", "2"], ["resume", str(run), "--total-steps", "160"]):
        capsys.readouterr()
        assert main(arguments) == 0
        first, *_, last = [line for line in capsys.readouterr().err.splitlines() if "damaged" in line]
        assert first == last
        assert last.startswith(f"fragmenta: checkpoint {used} is used, because ")
