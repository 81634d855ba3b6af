"""Profiling from a user's perspective: `train --trace`, `trace RUN`, `graph RUN`."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fragmenta.cli.main import main
from timelines import read_timeline

TINY = ["ppo", "CartPole-v1", "--num-envs", "4", "--horizon", "8", "--hidden", "8", "--epochs", "1"]
SPLIT = ["--minibatches", "2", "--policy", "single_learner_coarse", "--replicas", "2", "--no-merge"]
LENGTH = ["--total-steps", "320"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: Any) -> Path:
    """The same run with and without a timeline."""
    folder = tmp_path_factory.mktemp("runs")
    assert main(["train", *TINY, *SPLIT, *LENGTH, "--run-dir", str(folder / "plain"), "--json"]) == 0
    assert main(["train", *TINY, *SPLIT, *LENGTH, "--run-dir", str(folder / "traced"), "--json", "--trace"]) == 0
    return folder


def mistake(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    return output.err


@pytest.mark.full
def test_a_timeline_changes_nothing(runs: Path) -> None:
    hashes = [json.loads((runs / name / "summary.json").read_text())["params_sha256"] for name in ("plain", "traced")]
    assert hashes[0] == hashes[1]
    assert not (runs / "plain" / "trace.pftrace").exists()
    timeline = read_timeline((runs / "traced" / "trace.pftrace").read_bytes())
    assert list(timeline.threads.values()) == ["actor[0]", "actor[1]", "learner"]
    assert len([s for s in timeline.slices["learner"] if s.depth == 0]) == 8, "the ten iterations but for the first two"


@pytest.mark.full
def test_trace_reruns_and_says_where_time_goes(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs / "plain", run)
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    assert "has no measured times: run 'fragmenta trace" in mistake(capsys, "graph", str(run))
    assert main(["trace", str(run), "--iterations", "4"]) == 0
    text = capsys.readouterr().out
    for part in ("actor[0]", "actor[1]", "learner", "waits for", "the busiest fragment is", "ui.perfetto.dev"):
        assert part in text
    timeline = read_timeline((run / "trace.pftrace").read_bytes())
    assert len([s for s in timeline.slices["actor[1]"] if s.depth == 0]) == 4
    assert all((run / name).read_bytes() == content for name, content in before.items()), "the run itself is as it was"


@pytest.mark.full
def test_graph_of_a_run_shows_its_measurements(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(runs / "traced")
    assert main(["graph", run]) == 0
    text = capsys.readouterr().out
    assert "policy single_learner_coarse" in text
    assert "[Gather, 512 B; measured 512 B, wait " in text
    assert "loop x8(act, step): " in text
    assert "measured: the busiest fragment is '" in text
    assert main(["graph", run, "--format", "mermaid"]) == 0
    drawing = capsys.readouterr().out
    assert drawing.startswith("flowchart LR\n")
    assert drawing.count("measured: ") == 2
    assert drawing.count("measured ") == drawing.count("-->")
    assert "stroke-width:3px" in drawing


@pytest.mark.parametrize("command", ["trace", "graph"])
def test_a_directory_that_is_no_run_is_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "there is no run directory" in mistake(capsys, command, str(tmp_path / "nowhere"))
    (tmp_path / "config.json").write_text("{")
    assert "cannot read" in mistake(capsys, command, str(tmp_path))


def test_mistakes_get_one_line(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "usage: fragmenta trace RUN" in mistake(capsys, "trace")
    run = tmp_path / "run"
    shutil.copytree(runs / "traced", run)
    assert "iterations is 0" in mistake(capsys, "trace", str(run), "--iterations", "0")
    (run / "timings.json").write_text("{}")
    assert "cannot be read: run 'fragmenta trace" in mistake(capsys, "graph", str(run))
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "devices": ["cuda:0"]}))
    assert "used cuda:0, but this machine has only cpu:0" in mistake(capsys, "trace", str(run))
    (run / "config.json").write_text(json.dumps({**config, "hyper_parameters": {"no_such": 1}}))
    assert "does not accept the run's hyper-parameters" in mistake(capsys, "trace", str(run))
    (run / "config.json").write_text(json.dumps({**config, "algorithm": "mine"}))
    assert "unknown algorithm 'mine'" in mistake(capsys, "trace", str(run))
