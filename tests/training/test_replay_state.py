"""A large state: what a checkpoint contains of it, and how often it is copied."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fragmenta
from fragmenta import DQN, RunOptions, SaveOptions
from fragmenta.cli.main import main
from fragmenta.runs.checkpoints import CheckpointFolder
from fragmenta.runs.state import to_arrays
from fragmenta.training import log, start

SMALL = DQN(
    num_envs=4,
    horizon=4,
    batch_size=16,
    buffer_size=256,
    learning_starts=64,
    updates=2,
    hidden=(8,),
    prioritized=True,
    total_steps=640,
    anneal=False,
    exploration_share=0.0,  # nothing depends on the length of the run
    importance=1.0,
)


def trained(run: Path | None, steps: int, **saving: Any) -> fragmenta.Result:
    options = RunOptions(saving=SaveOptions(**saving))
    return fragmenta.train(SMALL, "CartPole-v1", run_dir=run, total_steps=steps, options=options, progress=False)


def summary_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text())


@pytest.mark.full
def test_with_its_replay_a_run_continues_exactly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = trained(None, 640)
    trained(tmp_path / "run", 320, save_replay=True)
    assert main(["resume", str(tmp_path / "run"), "--total-steps", "640"]) == 0
    assert "its replay continues where it was" in capsys.readouterr().out
    assert summary_of(tmp_path / "run")["resumed_replay"] == "continues"
    resumed = CheckpointFolder(tmp_path / "run" / "checkpoints").newest()
    for name, array in to_arrays(whole.state).items():
        np.testing.assert_array_equal(array, resumed.arrays[name], err_msg=name)


def test_without_it_a_run_fills_another_before_it_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = trained(tmp_path / "run", 320)
    saved = CheckpointFolder(tmp_path / "run" / "checkpoints").newest()
    assert not [name for name in saved.arrays if name.startswith("replay")]
    assert main(["resume", str(tmp_path / "run"), "--total-steps", "384"]) == 0
    assert "its replay fills anew, because it was not saved" in capsys.readouterr().out
    assert summary_of(tmp_path / "run")["resumed_replay"] == "refills"
    resumed = CheckpointFolder(tmp_path / "run" / "checkpoints").newest()
    # Four iterations of sixteen steps: the replay has all of them at the end, and had too few before each.
    assert resumed.steps == 384
    for name, array in saved.arrays.items():
        if name.startswith("learner"):
            np.testing.assert_array_equal(array, resumed.arrays[name], err_msg=name)
    loaded = fragmenta.load(tmp_path / "run", checkpoint="last").params()
    jax.tree.map(np.testing.assert_array_equal, loaded, first.params)


@pytest.mark.full
def test_a_resumed_run_learns_once_its_replay_is_filled(tmp_path: Path) -> None:
    first = trained(tmp_path / "run", 320)
    resumed = fragmenta.resume(tmp_path / "run", total_steps=640, progress=False)
    assert int(resumed.state.learner.updates) == int(first.state.learner.updates) + 2 * (20 - 4)


@pytest.mark.parametrize(("share", "least", "most"), [(1e-9, 3, 3), (1e9, 4, 1_000)])
def test_copies_take_a_share_of_the_time(
    share: float, least: int, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = []

    def counted(state: Any, without: Any = ()) -> Any:
        copies.append(without)
        return to_arrays(state, without)

    monkeypatch.setattr(start, "to_arrays", counted)
    monkeypatch.setattr(log, "COPY_SHARE", share)
    monkeypatch.setattr(log, "STRETCH_SECONDS", 1e-3)
    trained(tmp_path / "run", 640)
    assert least <= len(copies) <= most
    assert set(copies) == {("replay",)}
