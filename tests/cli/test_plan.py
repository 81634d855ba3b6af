"""`fragmenta plan`: candidates, the choice, timelines, scaling and mistakes."""

from pathlib import Path
from typing import Any

import pytest

from fragmenta import Cluster, Fragment
from fragmenta.cli import plan
from fragmenta.cli.main import main
from fragmenta.planner import search
from fragmenta.planner.search import Prediction
from timelines import read_timeline

TINY = ["ppo", "CartPole-v1", "--num-envs", "16", "--horizon", "8", "--hidden", "8", "--epochs", "1"]
TINY += ["--minibatches", "2"]


def mistake(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["plan", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    return output.err


def misplaced(stages: Any, cluster: Cluster) -> list[Fragment]:
    """A distribution policy that names a stage that there is not."""
    return [Fragment("all", (*stages, "nonesuch"), cluster.devices[:1])]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "fussed"], "unknown distribution policy 'fussed': did you mean 'fused'?"),
        (["--cluster", "msrl-azur"], "unknown machines 'msrl-azur': did you mean 'msrl-azure'?"),
        (["--engine", "rey"], "unknown engine 'rey'"),
        (["--replicas", "0"], "replicas is 0: it must be at least 1"),
        (["--replicas", "3", "--policy", "fused"], "3 replicas of fragment 'all' do not divide 16 environments"),
        (["--cluster", "laptop", "--measure"], "measure is for this machine, but cluster is 'laptop'"),
        (["--cluster", "msrl-azure", "--engine", "local"], "there are 16: use ray"),
        (["--scale", "4"], "scale is '4': give two numbers of devices, as in 1..4096"),
        (["--scale", "1..4", "--measure"], "leave out --measure"),
        (["--scale", "1..4", "--objective", "return"], "leave out --objective"),
        (["--objective", "returns"], "objective"),
        (["--policy", "auto,fussed"], "unknown distribution policy 'fussed'"),
        (["--cluster", "laptop", "--policy", "auto", f"{__name__}:misplaced"], "unknown stage 'nonesuch'"),
        (["--out", "plan.txt"], "choose a name that ends in .pftrace"),
        (["--out", "nowhere/plan.pftrace"], "there is no directory 'nowhere'"),
        (["--scale", "1..4", "--out", "plan.pftrace"], "choose a name that ends in .png or .svg"),
        (["--seconds", "-1"], "seconds is -1.0: it must be at least 0"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in mistake(capsys, *TINY, *arguments)


def test_a_cluster_that_is_not_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    timeline = tmp_path / "plan.pftrace"
    policies = ["--policy", "single_learner_coarse", "single_learner_async", "single_learner_fine"]
    assert main(["plan", *TINY, "--cluster", "msrl-local", "--replicas", "2", *policies, "--out", str(timeline)]) == 0
    text = capsys.readouterr().out
    assert "4 nodes, 32 devices (V100)" in text
    assert "~ estimate: computed from operations and bytes instead of measured" in text
    assert "changes the result" in text
    choice = next(line for line in text.splitlines() if line.startswith("choice: "))
    assert choice.startswith(("choice: single_learner_coarse x2", "choice: single_learner_fine x2"))
    assert "the busiest fragment is" in choice
    assert "computes" in text
    threads = list(read_timeline(timeline.read_bytes()).threads.values())
    assert "learner" in threads
    assert len(threads) == 3


def table_of(text: str) -> list[list[str]]:
    """The cells of the rows of candidates, and of the columns' names."""
    rows = [[cell.strip() for cell in line.strip("┃│").replace("┃", "│").split("│")] for line in text.splitlines()]
    return [row for row in rows if len(row) > 5]


def test_the_shortest_time_to_a_return(capsys: pytest.CaptureFixture[str]) -> None:
    policies = ["--policy", "single_learner_fine", "single_learner_async"]
    arguments = ["--cluster", "msrl-local", "--replicas", "2", *policies, "--objective", "return"]
    assert main(["plan", *TINY, *arguments]) == 0
    text = capsys.readouterr().out
    names, *rows = table_of(text)
    assert names[2:4] == ["steps needed", "time"]
    needed = {row[0].removeprefix("> ").split()[0]: row[2] for row in rows if row[2]}
    assert needed["single_learner_fine"] == "1.00 x"
    assert needed["single_learner_async"] != "1.00 x"
    choice = next(line for line in text.splitlines() if line.startswith("choice: "))
    assert choice.startswith("choice: single_learner_async x2"), "it may change the result"
    assert "of the time of single_learner_fine x2" in choice


def test_the_choice_is_what_training_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main(["plan", *TINY, "--seconds", "0.1"]) == 0
    choice = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("choice: "))
    chosen = choice.removeprefix("choice: ").partition(",")[0]
    monkeypatch.setattr(search, "measure_units", None)  # calling it would raise
    assert main(["train", *TINY, "--total-steps", "512"]) == 0
    assert f"plan: {chosen}, predicted " in capsys.readouterr().out


def test_what_was_run_is_preferred_to_what_was_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    ran = []

    def rate(algorithm: Any, env: str, options: Any, prediction: Prediction, seconds: float) -> float:
        ran.append(prediction.candidate)
        return 1000.0 * len(ran)  # the last one is the fastest

    monkeypatch.setattr(plan, "measured_rate", rate)
    assert main(["plan", *TINY, "--seconds", "0.1", "--measure"]) == 0
    capsys.readouterr()
    monkeypatch.setattr(search, "measure_units", None)
    assert main(["train", *TINY, "--total-steps", "512"]) == 0
    kept = [candidate for candidate in ran if candidate.keeps_result]
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("plan: "))
    assert line.startswith(f"plan: {kept[-1].description}, measured ")


def test_what_does_not_fit_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machines = tmp_path / "small.toml"
    gpu = 'gpu = { model = "small", memory_gb = 0.0001, tflops = 1, bandwidth_gb_per_s = 100 }'
    link = "link = { latency_ms = 0.01, gb_per_s = 16 }"
    machines.write_text(f'[[node]]\nname = "one"\ncores = 2\nmemory_gb = 8\ngpus = 2\n{gpu}\n{link}\n')
    arguments = ["--cluster", str(machines), "--policy", "fused", "--replicas", "1", "--num-envs", "4096"]
    assert "no plan fits the memory: fused x1: needs" in mistake(capsys, *TINY, *arguments)


def test_throughput_against_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chart = tmp_path / "scale.png"
    policies = ["--policy", "fused", "single_learner_coarse"]
    arguments = ["--cluster", "msrl-azure", "--scale", "1..8", *policies, "--out", str(chart)]
    assert main(["plan", *TINY, *arguments]) == 0
    text = capsys.readouterr().out
    assert "simulated, as many environments per device" in text
    assert "single_learner_coarse on 8: the busiest fragment is" in text
    assert text.count("100%") >= 2
    assert chart.stat().st_size > 10_000


@pytest.mark.full
def test_predicted_beside_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "ppo", "CartPole-v1", "--num-envs", "64", "--policy", "fused", "--measure"]) == 0
    text = capsys.readouterr().out
    assert "measured here, in steady state:" in text
    assert "predicted" in text.splitlines()[-1]
    assert "~" not in text.splitlines()[3], "what is here was measured"
