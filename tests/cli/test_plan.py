"""`fragmenta plan`: candidates, the choice, timelines, scaling and mistakes."""

from pathlib import Path

import pytest

from fragmenta.cli.main import main
from timelines import read_timeline

TINY = ["ppo", "CartPole-v1", "--num-envs", "16", "--horizon", "8", "--hidden", "8", "--epochs", "1"]
TINY += ["--minibatches", "2"]


def mistake(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["plan", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    return output.err


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
