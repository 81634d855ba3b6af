"""Metrics: no record is lost, even if something else fails."""

import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest

import fragmenta
from fragmenta import PPO, ConfigError
from fragmenta.cli.main import main
from fragmenta.errors import StorageError
from fragmenta.runs.metrics import CAPACITY, MetricsLog
from fragmenta.runs.sinks import point
from recording_sinks import install, wandb_calls

QUICK = ["train", "ppo", "CartPole-v1", "--num-envs", "4", "--horizon", "8", "--hidden", "8", "--epochs", "1"]
QUICK += ["--minibatches", "2", "--total-steps", "320"]


def lines_of(path: Path) -> list[dict[str, Any]]:
    text = (path / "metrics.jsonl").read_text()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def events_of(path: Path) -> list[tuple[int, dict[str, float]]]:
    """The step and scalars of every point in an event file."""
    from tensorboardX.proto.event_pb2 import Event

    (file,) = (path / "tensorboard").iterdir()
    data, points = file.read_bytes(), []
    while data:  # a length, its checksum, an event, its checksum
        (size,) = struct.unpack("<Q", data[:8])
        event = Event.FromString(data[12 : 12 + size])
        points.append((event.step, {value.tag: value.simple_value for value in event.summary.value}))
        data = data[16 + size :]
    return points[1:]  # the first is the format version


def test_a_run_records_all_metrics(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main([*QUICK, "--policy", "single_learner_coarse", "--no-merge", "--run-dir", str(run)]) == 0
    records = lines_of(run)
    assert [record["iteration"] for record in records] == list(range(10))
    required = {"episodes", "return_mean", "length_mean", "policy_loss", "value_loss", "entropy", "kl"}
    required |= {"explained_variance", "steps_per_second", "steps_per_second_overall", "busy/actor", "busy/learner"}
    assert all(required <= set(record) for record in records)
    assert records[0]["memory_mb"] > 50
    points = events_of(run)
    assert points[-1][0] == 320
    tags = {tag for _, scalars in points for tag in scalars}
    assert {"episode/return", "episode/length", "loss/policy", "loss/entropy", "speed/steps_per_second"} <= tags
    assert {"time/actor", "time/learner", "memory/resident_mb"} <= tags
    assert sum(scalars["episode/count"] for _, scalars in points) == sum(record["episodes"] for record in records)


@pytest.mark.full
def test_wandb_and_mlflow_are_called_as_documented(tmp_path: Path, monkeypatch: Any) -> None:
    install(tmp_path / "packages", monkeypatch)
    run = tmp_path / "run"
    assert main([*QUICK, "--sinks", "wandb,mlflow", "--run-dir", str(run)]) == 0
    assert not (run / "tensorboard").exists()
    calls = wandb_calls(run)
    assert [call[0] for call in calls] == ["init", "define_metric", *["log"] * (len(calls) - 3), "finish"]
    assert calls[0][1] == {"project": "fragmenta", "name": "run", "tags": []}
    assert calls[-2][1]["steps"] == 320
    assert "loss/value" in calls[-2][1]
    assert {call[2] for call in calls} == {"fragmenta-metrics"}, "training waits for no sink"
    import mlflow  # pyright: ignore[reportMissingImports]

    names = [call[0] for call in mlflow.calls]
    assert names[:3] == ["set_experiment", "start_run", "log_params"]
    assert mlflow.calls[2][1]["hyper_parameters.num_envs"] == 4
    assert names[-2:] == ["log_metrics", "end_run"]


@pytest.mark.full
def test_several_sinks_get_evaluations_videos_and_how_to_list_the_run(tmp_path: Path, monkeypatch: Any) -> None:
    install(tmp_path / "packages", monkeypatch)
    run, listed = tmp_path / "run", ["--project", "poles", "--run-name", "first", "--tags", "ppo", "small"]
    evaluated = ["--eval-every", "5", "--eval-episodes", "2", "--eval-video"]
    assert main([*QUICK, "--sinks", "tensorboard,wandb,mlflow", "--run-dir", str(run), *listed, *evaluated]) == 0
    records = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
    calls = wandb_calls(run)
    assert calls[0][1] == {"project": "poles", "name": "first", "tags": ["ppo", "small"]}
    assert calls[1][1] == {"name": "*", "step_metric": "steps"}, "points of an evaluation come late"
    points = [call[1] for call in calls if call[0] == "log" and "evaluation/return" in call[1]]
    assert [(point["steps"], point["evaluation/return"]) for point in points] == [
        (record["steps"], record["return_mean"]) for record in records
    ]
    videos = [call[1] for call in calls if call[0] == "log" and "evaluation/video" in call[1]]
    assert [video["evaluation/video"]["video"] for video in videos] == [str(run / r["video"]) for r in records]
    assert all((run / record["video"]).read_bytes().startswith(b"GIF89a") for record in records)
    in_tensorboard = {tag for _, scalars in events_of(run) for tag in scalars}
    assert {"evaluation/return", "evaluation/video", "loss/value"} <= in_tensorboard
    import mlflow  # pyright: ignore[reportMissingImports]

    assert ("set_experiment", "poles") in mlflow.calls
    assert ("start_run", "first", {"ppo": "", "small": ""}) in mlflow.calls
    assert ("log_artifact", str(run / records[0]["video"]), "videos") in mlflow.calls


@pytest.mark.parametrize(
    ("env", "flags", "message"),
    [
        ("CartPole-v1", ["--eval-video"], "eval_video records evaluations, but eval_every is 0"),
        ("ProbeConstant", ["--eval-video", "--eval-every", "5"], "ProbeConstant cannot be rendered"),
    ],
)
def test_videos_that_cannot_be(env: str, flags: list[str], message: str, tmp_path: Path, capsys: Any) -> None:
    assert main([*QUICK[:2], env, *QUICK[3:], *flags, "--run-dir", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_failing_sink_is_dropped_with_one_warning(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    install(tmp_path / "packages", monkeypatch, "raise ConnectionError('no such host')")
    with MetricsLog(tmp_path, ["wandb", "tensorboard"]) as log:
        for i in range(3):
            log.add({"iteration": i, "steps": i})
            time.sleep(0.15)
    warning = "fragmenta: metrics no longer go to wandb, which failed: no such host\n"
    assert capsys.readouterr().err == warning
    assert len(lines_of(tmp_path)) == 3
    assert len(events_of(tmp_path)) == 3


def test_a_sink_that_cannot_start_is_dropped(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "tensorboard").write_text("in the way")
    with MetricsLog(tmp_path, ["tensorboard"]) as log:
        log.add({"iteration": 0, "steps": 1})
    assert capsys.readouterr().err.startswith("fragmenta: metrics no longer go to tensorboard, which failed: ")
    assert len(lines_of(tmp_path)) == 1


def test_missing_and_unknown_sinks_are_mistakes(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    for sinks, message in (
        ("wandb", "sink 'wandb' needs the package wandb: pip install 'fragmenta[wandb]'"),
        ("tensorbord", "unknown sink 'tensorbord': did you mean 'tensorboard'?"),
    ):
        assert main([*QUICK, "--sinks", sinks, "--run-dir", str(tmp_path / "run")]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError):
        fragmenta.train(PPO(), "CartPole-v1", options=fragmenta.RunOptions(sinks=("wandb",)), run_dir=tmp_path / "run")


def test_without_a_sink_only_json_lines_are_written(tmp_path: Path) -> None:
    assert main([*QUICK, "--sinks", "none", "--run-dir", str(tmp_path / "run")]) == 0
    assert not (tmp_path / "run" / "tensorboard").exists()
    assert len(lines_of(tmp_path / "run")) == 10


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_ends_the_run_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    added = []

    def train(iterations: int) -> None:
        with MetricsLog(tmp_path) as log:
            for i in range(iterations):
                log.add({"iteration": i, "steps": i})
                added.append(i)
                time.sleep(0.01)

    with pytest.raises(StorageError, match="No space left on device"):
        train(1_000)
    assert len(added) < 1_000, "the loop hears of it while it goes"
    with pytest.raises(StorageError, match="the run has ended"):
        train(1)


def test_records_beyond_the_queue_size_are_written(tmp_path: Path, monkeypatch: Any) -> None:
    install(tmp_path / "packages", monkeypatch, "__import__('time').sleep(0.3)")
    with MetricsLog(tmp_path, ["wandb"]) as log:
        for i in range(CAPACITY * 2 + 10):
            log.add({"iteration": i, "steps": i, "loss": float("nan")})
    records = lines_of(tmp_path)
    assert [record["iteration"] for record in records] == list(range(CAPACITY * 2 + 10))
    assert records[0]["loss"] is None, "JSON has no NaN"
    assert not any(thread.name == "fragmenta-metrics" for thread in threading.enumerate())


def test_an_incomplete_last_line_is_removed_and_the_rest_kept(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 0, "steps": 1}\n{"itera')
    with MetricsLog(tmp_path) as log:
        log.add({"iteration": 1, "steps": 2})
    assert [record["iteration"] for record in lines_of(tmp_path)] == [0, 1]


@pytest.mark.full
def test_a_killed_run_leaves_complete_lines(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "fragmenta.cli.main", *QUICK[:-1], "100000000", "--run-dir", str(run)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 100
        metrics = run / "metrics.jsonl"
        while time.monotonic() < until and not (metrics.exists() and metrics.stat().st_size > 200_000):
            time.sleep(0.05)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    records = lines_of(run)
    assert [record["iteration"] for record in records] == list(range(len(records)))
    assert len(records) > 100


def test_a_point_is_the_mean_of_its_iterations() -> None:
    records = [
        {"iteration": 0, "steps": 8, "episodes": 1, "return_mean": 10.0, "kl": 1.0, "per_seed": {}},
        {"iteration": 1, "steps": 16, "episodes": 0, "return_mean": None, "kl": 3.0, "source": "actor[1]"},
        {"iteration": 2, "steps": 24, "episodes": 3, "return_mean": 20.0, "kl": 2.0, "dropped": 4},
    ]
    assert point(records) == {"episode/count": 4, "episode/return": 17.5, "loss/kl": 2.0, "speed/dropped": 4}


class Sums:
    """A sink of one's own."""

    points: ClassVar[list[int]] = []
    closed = False

    def __init__(self, directory: Path, config: dict[str, Any]) -> None:
        assert config["env"] == "CartPole-v1"
        assert directory.exists()

    def write(self, scalars: dict[str, float], steps: int) -> None:
        Sums.points.append(steps)

    def close(self) -> None:
        Sums.closed = True


@pytest.mark.full
def test_a_sink_of_ones_own_is_named_like_an_algorithm(tmp_path: Path) -> None:
    options = fragmenta.RunOptions(sinks=(f"{__name__}:Sums",))
    result = fragmenta.train(
        fragmenta.A2C(num_envs=4, hidden=(8,)),
        "CartPole-v1",
        total_steps=320,
        run_dir=tmp_path / "run",
        options=options,
    )
    assert Sums.points[-1] == result.summary["total_steps"]
    assert Sums.closed
    with pytest.raises(fragmenta.ConfigError, match="has no method write"):
        fragmenta.train(
            fragmenta.A2C(),
            "CartPole-v1",
            run_dir=tmp_path / "b",
            options=fragmenta.RunOptions(sinks=("builtins:str",)),
        )
