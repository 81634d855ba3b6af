"""`eval`, `play` and `export` on a run directory, from a user's perspective."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fragmenta import PPO, train
from fragmenta.cli.main import main
from fragmenta.progress.watching import Progress
from fragmenta.training.stopping import StoppedError
from helpers import StopAt


class Failing(StopAt):
    """A watcher whose code fails."""

    def progressed(self, progress: Progress) -> None:
        raise RuntimeError("my error")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run on CartPole, and one on an environment that cannot be rendered."""
    path = tmp_path_factory.mktemp("runs")
    for env, name in (("CartPole-v1", "run"), ("ProbeConstant", "probe")):
        flags = ["--num-envs", "4", "--horizon", "8", "--minibatches", "2", "--hidden", "8", "--total-steps", "64"]
        assert main(["train", "ppo", env, *flags, "--run-dir", str(path / name)]) == 0
    (path / "folder").mkdir()
    (path / "file").write_text("")
    return path


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eval"], "usage: fragmenta eval RUN"),
        (["eval", "nowhere"], "there is no run directory 'nowhere'"),
        (["eval", "folder"], "'folder' has no config.json: it is not a run directory"),
        (["eval", "run", "--episodes", "0"], "episodes is 0: it must be at least 1"),
        (["eval", "run", "--episodes", "many"], "'many' is not a whole number"),
        (["eval", "run", "--seed", "-3"], "seed is -3"),
        (["eval", "run", "--episode", "3"], "unknown flag '--episode': did you mean --episodes?"),
        (
            ["eval", "run", "--checkpoint", "7"],
            "no checkpoint '7' (existing ones: 2): choose best, last or an existing iteration",
        ),
        (["export", "run", "--checkpoint", "newest"], "no checkpoint 'newest' (existing ones: 2)"),
        (["play", "nowhere"], "there is no run directory 'nowhere'"),
        (["play", "run", "--out", "video.png"], "out is 'video.png': choose a name that ends in .gif or .mp4"),
        (["play", "run", "--out", "no/video.gif"], "there is no directory 'no'"),
        (["play", "run", "--episodes", "0"], "episodes is 0"),
        (["play", "run", "--max-steps", "0"], "max_steps is 0"),
        (["play", "probe"], "ProbeConstant cannot be rendered"),
        (["export", "nowhere"], "there is no run directory 'nowhere'"),
        (["export", "run", "--to", "there"], "unknown flag '--to'"),
    ],
)
def test_mistakes_get_one_line(
    arguments: list[str], message: str, runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(runs)
    before = sorted(runs.rglob("*"))
    capsys.readouterr()
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert error.startswith("fragmenta: ")
    assert sorted(runs.rglob("*")) == before, "a mistake leaves nothing behind"


@pytest.mark.full
def test_eval_prints_and_saves_deterministic_and_stochastic_results(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs / "run"
    text = output_of(capsys, "eval", str(run), "--episodes", "8", "--seed", "2")
    assert "ppo on CartPole-v1, 8 episodes, seed 2" in text
    likeliest, drawn = text.splitlines()[1:]
    assert likeliest.split()[:2] == ["deterministic", "return"]
    assert drawn.split()[:2] == ["stochastic", "return"]
    records = json.loads(output_of(capsys, "eval", str(run), "--episodes", "8", "--seed", "2", "--json"))
    assert [record["deterministic"] for record in records] == [True, False]
    assert f"{records[0]['return_mean']:.2f}" in likeliest
    written = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
    assert written[2:] == records
    summary = json.loads((run / "summary.json").read_text())
    for first, again in zip(written[:2], written[2:], strict=True):
        assert {**first, "seconds": 0} == {**again, "seconds": 0}
        assert first["params_sha256"] == summary["params_sha256"]
        assert first["return_low"] <= first["return_mean"] <= first["return_high"]


@pytest.mark.full
def test_play_writes_into_the_run_directory(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = output_of(capsys, "play", str(runs / "run"), "--episodes", "2")
    assert text.startswith("episode 1: return ")
    assert f"wrote {runs / 'run' / 'play.gif'}: " in text
    assert (runs / "run" / "play.gif").read_bytes().startswith(b"GIF89a")


def test_mp4_needs_ffmpeg(runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setitem(__import__("sys").modules, "imageio_ffmpeg", None)
    assert main(["play", str(runs / "run"), "--out", str(runs / "video.mp4")]) == 2
    assert "MP4 needs imageio-ffmpeg: pip install 'fragmenta[mp4]', or choose a .gif" in capsys.readouterr().err


def test_mp4(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    video = runs / "video.mp4"
    text = output_of(capsys, "play", str(runs / "run"), "--out", str(video), "--episodes", "1", "--max-steps", "20")
    assert f"wrote {video}: " in text
    frames, seconds = ffmpeg.count_frames_and_secs(video)
    assert frames == round(25 * seconds) > 20
    assert [path.name for path in runs.glob("*video*")] == ["video.mp4"]


def test_export_says_how_to_call_the_exported_policy(
    runs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = output_of(capsys, "export", str(runs / "run"), "--out", str(tmp_path / "out"))
    assert "action = policy.call(observation)" in text
    names = {"policy.json", "policy.safetensors", "policy.jaxexport", "policy_stochastic.jaxexport"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    (tmp_path / "file").write_text("")
    assert main(["export", str(runs / "run"), "--out", str(tmp_path / "file")]) == 2
    assert "cannot write to" in capsys.readouterr().err


@pytest.mark.full
def test_runs_are_listed_with_their_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = ["--num-envs", "4", "--horizon", "8", "--minibatches", "2", "--hidden", "8"]
    assert main(["train", "ppo", "CartPole-v1", *tiny, "--total-steps", "640", "--run-dir", str(tmp_path / "a")]) == 0
    with pytest.raises(StoppedError):
        train(PPO(num_envs=4, horizon=8), "CartPole-v1", run_dir=tmp_path / "b", watcher=StopAt(2))
    with pytest.raises(RuntimeError, match="my error"):
        train(PPO(num_envs=4, horizon=8), "CartPole-v1", run_dir=tmp_path / "c", watcher=Failing(-1))
    shutil.copytree(tmp_path / "a", tmp_path / "d")
    with (tmp_path / "d" / "history.jsonl").open("a") as file:  # resumed and killed
        file.write('{"event": "resumed", "time": "2999-01-01T00:00:00", "steps": 640}\n')
    shutil.copytree(tmp_path / "d", tmp_path / "e")
    hold = f"import fcntl, sys, time; f = open({str(tmp_path / 'e' / '.lock')!r}, 'a+'); fcntl.lockf(f, fcntl.LOCK_EX)"
    wait = "print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", f"{hold}; {wait}"], stdin=-1, stdout=-1) as holder:
        assert holder.stdout
        holder.stdout.readline()
        rows = [line.split("│")[1:-1] for line in output_of(capsys, "runs", str(tmp_path)).splitlines() if "│" in line]
        holder.communicate()
    states = {row[0].strip(): row[6].strip() for row in rows}
    assert states == {"a": "done", "b": "stopped", "c": "failed", "d": "failed", "e": "running"}
    (first,) = [[cell.strip() for cell in row] for row in rows if row[0].strip() == "a"]
    assert first[1:5] == ["ppo", "CartPole-v1", "fused", "640"]
    assert float(first[5]) > 0
    assert main(["runs", str(tmp_path / "a")]) == 2
    assert "has no runs" in capsys.readouterr().err


def test_a_damaged_summary_is_one_line(runs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shutil.copytree(runs / "run", tmp_path / "run")
    for content in ("{", "[]"):
        (tmp_path / "run" / "summary.json").write_text(content)
        capsys.readouterr()
        assert main(["eval", str(tmp_path / "run"), "--episodes", "1"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "summary.json'" in line


def test_deleted_metrics_are_one_line_at_resume(runs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shutil.copytree(runs / "run", tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").unlink()
    assert main(["resume", str(tmp_path / "run"), "--total-steps", "128"]) == 2
    missing = tmp_path / "run" / "metrics.jsonl"
    assert f"'{missing}' is missing: restore it from a backup, or train again" in capsys.readouterr().err
    assert (tmp_path / "run" / "summary.json").exists(), "nothing was removed"
