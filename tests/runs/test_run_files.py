"""Reading a run directory."""

import json
from pathlib import Path

import numpy as np
import pytest

from fragmenta import PPO, ConfigError, train
from fragmenta.pictures.run_files import (
    highest_return,
    read_run_files,
    recent_returns,
    returns,
    speed,
    steps_per_second,
)
from made_runs import add_evaluations, made_run


def test_an_incomplete_last_line_is_ignored(tmp_path: Path) -> None:
    path = made_run(tmp_path / "run", iterations=10, finished=False)
    text = (path / "metrics.jsonl").read_text()
    (path / "metrics.jsonl").write_text(text[:-30])
    add_evaluations(path)
    run = read_run_files(path)
    assert [record["iteration"] for record in run.records] == list(range(9))
    assert [evaluation["steps"] for evaluation in run.evaluations] == [1000, 2000]
    assert run.summary is None


def test_repeated_iterations_count_once(tmp_path: Path) -> None:
    path = made_run(tmp_path / "run", iterations=10)
    again = [
        {"iteration": i, "steps": 100 * (i + 1), "seconds": 0.1 * i, "episodes": 1, "return_mean": -1.0}
        for i in (8, 9, 10)
    ]
    with open(path / "metrics.jsonl", "a") as file:
        file.writelines(json.dumps(record) + "\n" for record in again)
    run = read_run_files(path)
    assert [record["iteration"] for record in run.records] == list(range(11))
    assert returns(run).values[-3:].tolist() == [-1.0, -1.0, -1.0]
    assert np.isfinite(speed(run).values).all()


def test_recent_returns_are_weighted_by_episodes(tmp_path: Path) -> None:
    path = made_run(tmp_path / "run")
    lines = [(90, 1.0), (0, None), (10, 11.0), (100, 7.0)]
    records = [
        {"iteration": i, "steps": i + 1, "seconds": i + 1, "episodes": episodes, "return_mean": mean}
        for i, (episodes, mean) in enumerate(lines)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    run = read_run_files(path)
    assert recent_returns(run).steps.tolist() == [1, 3, 4]
    assert recent_returns(run).values.tolist() == pytest.approx([1.0, 2.0, 7.0])
    assert highest_return(run) == pytest.approx(7.0)


def test_speed_is_measured_over_time_not_over_iterations(tmp_path: Path) -> None:
    """The ten iterations of a launch are reported at once, so the time between them means nothing."""
    path = made_run(tmp_path / "run", finished=False)
    records = [
        {"iteration": i, "steps": 100 * (i + 1), "seconds": 0.1 * (1 + i // 10) + 1e-6 * i, "episodes": 0}
        for i in range(200)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    run = read_run_files(path)
    assert steps_per_second(run) == pytest.approx(10_000, rel=0.01)
    assert np.allclose(speed(run).values[1:], 10_000, rtol=0.5)
    assert (speed(run).steps[0], speed(run).steps[-1]) == (0, 20_000)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: (path / "config.json").unlink(), "has no config.json: it is not a run directory"),
        (lambda path: (path / "config.json").write_text("{"), "cannot read"),
        (lambda path: (path / "config.json").write_text("{}"), "lacks algorithm, env, policy"),
        (lambda path: (path / "metrics.jsonl").unlink(), "has no metrics.jsonl"),
        (lambda path: (path / "metrics.jsonl").write_text(""), "is empty: wait for its first iteration"),
        (lambda path: (path / "metrics.jsonl").write_text('{"iterat'), "is empty: wait for its first iteration"),
        (lambda path: (path / "metrics.jsonl").write_text("3\n{}\n"), "line 1 of"),
        (lambda path: (path / "summary.json").write_text(""), "cannot read"),
    ],
)
def test_an_invalid_directory_is_reported(spoil, message: str, tmp_path: Path) -> None:
    path = made_run(tmp_path / "run")
    spoil(path)
    with pytest.raises(ConfigError, match=message) as error:
        read_run_files(path)
    assert "\n" not in str(error.value)


@pytest.mark.full
def test_training_draws_its_curve(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    tiny = PPO(num_envs=4, horizon=8, hidden=(8,), epochs=1, minibatches=2)
    train(tiny, "CartPole-v1", total_steps=256, run_dir=tmp_path / "run", progress=False)
    picture = (tmp_path / "run" / "curve.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000
    assert capsys.readouterr().err == ""
    run = read_run_files(tmp_path / "run")
    assert run.summary is not None
    assert run.summary["return_mean"] == pytest.approx(recent_returns(run).values[-1])


@pytest.mark.full
def test_a_curve_that_cannot_be_drawn_is_a_one_line_warning(tmp_path: Path, capsys, monkeypatch) -> None:
    from matplotlib.figure import Figure

    def full(self, *arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", full)
    tiny = PPO(num_envs=4, horizon=8, hidden=(8,), epochs=1, minibatches=2)
    result = train(tiny, "CartPole-v1", total_steps=32, run_dir=tmp_path / "run", progress=False)
    assert result.summary["iterations"] == 1
    assert (tmp_path / "run" / "summary.json").exists()
    assert not (tmp_path / "run" / "curve.png").exists()
    warning = capsys.readouterr().err
    assert warning == "fragmenta: curve.png was not drawn: [Errno 28] No space left on device\n"
