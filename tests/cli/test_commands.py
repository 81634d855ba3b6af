"""The command line from a user's perspective."""

import contextlib
import io
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from safetensors.numpy import load_file

from fragmenta.cli.main import main
from fragmenta.policies import POLICIES

QUICK = ["train", "ppo", "CartPole-v1", "--num-envs", "8", "--horizon", "16", "--total-steps", "512", "--hidden", "8"]


def mistake(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one-line error message of a user mistake; asserts exit code 2 and no traceback."""
    assert main(list(arguments)) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert output.err.startswith("fragmenta: ")
    return output.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian", "ppo", "CartPole-v1"], "unknown command 'trian': did you mean 'train'?"),
        (["train", "pppo", "CartPole-v1"], "unknown algorithm 'pppo': did you mean 'ppo'?"),
        (["train", "ppo", "CartPole-v2"], "unknown environment 'CartPole-v2': did you mean 'CartPole-v1'?"),
        ([*QUICK, "--policy", "single_lerner_fine"], "did you mean 'single_learner_fine'?"),
        ([*QUICK, "--policy", "no_such_module:policy"], "cannot load distribution policy 'no_such_module:policy'"),
        ([*QUICK, "--engine", "locl"], "unknown engine 'locl': did you mean 'local'?"),
        (
            [*QUICK, "--replicas", "3", "--no-merge"],
            "do not divide 8 environments: the nearest that do are 2 and 4 replicas, or 6 or 9 environments",
        ),
        ([*QUICK, "--policy", "multi_learner", "--replicas", "16"], "16 replicas need a device each, but there are 8"),
        ([*QUICK, "--lag", "2"], "lag is 2: choose 0 or 1"),
        ([*QUICK, "--lag", "1"], "policy 'fused' has nothing to overlap"),
        ([*QUICK, "--max-lag", "1"], "is not asynchronous"),
        ([*QUICK, "--max-lag", "-1"], "max_lag is -1"),
        ([*QUICK, "--cpu-devices", "0"], "cpu_devices is 0"),
        ([*QUICK, "--deadline", "nan"], "deadline is nan: it must be more than 0 seconds"),
        ([*QUICK, "--watchdog", "nan"], "watchdog is nan: it must be more than 0 seconds"),
        ([*QUICK, "--env-timeout", "nan"], "env_timeout is nan: it must be more than 0 seconds"),
        (["train", "mappo", "CartPole-v1"], "not a team"),
        (["train", "ppo", "ProbeTeam"], "trains one agent, but ProbeTeam has 4: use mappo"),
        ([*QUICK, "--replicas", "0"], "replicas is 0: it must be at least 1"),
        ([*QUICK, "--horizon", "30"], "horizon 30 does not divide into 8 minibatches"),
        ([*QUICK, "--num-envs", "0"], "num_envs is 0"),
        ([*QUICK, "--num-envs", "many"], "Error parsing --num-envs: 'many' is not a whole number"),
        ([*QUICK, "--stop-at-return", "high"], "Error parsing --stop-at-return: 'high' is not a number"),
        ([*QUICK, "--hidden", "64,64"], "cannot read '64,64': separate values by spaces, not by commas"),
        ([*QUICK, "--sinks", "none,wandb"], "none means no sink at all"),
        ([*QUICK, "--project", "mine"], "project is 'mine', but no sink lists runs by it: add --sinks wandb"),
        ([*QUICK, "--hoziron", "8"], "unknown flag '--hoziron': did you mean --horizon?"),
        ([*QUICK, "--lr", "1e-3"], "unknown flag '--lr': did you mean --learning-rate?"),
        ([*QUICK, "--steps", "100"], "unknown flag '--steps': did you mean --total-steps?"),
        ([*QUICK, "--compute", "float16"], "choose float32, float32-exact or bfloat16"),
        (["train", "trpo", "CartPole-v1"], "unknown algorithm 'trpo': choose from a2c, ddpg, dqn, fast_td3, impala"),
        (["train", "ppo", "cartpole"], "unknown environment 'cartpole': did you mean 'CartPole-v1'? choose from Acro"),
        (["doctor", "now"], "Unrecognized options: now"),
        (["policies", "--replicas", "0"], "replicas is 0: it must be at least 1"),
        (["train", "ppo"], "usage: fragmenta train ALGORITHM ENVIRONMENT"),
        (["graph", "ppo", "CartPole-v1", "--format", "pdf"], "pdf"),
    ],
)
def test_mistakes_get_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in mistake(capsys, *arguments)
    assert not list(tmp_path.iterdir()), "a mistake leaves nothing behind"


def test_an_existing_run_directory_is_not_overwritten(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "results.txt").write_text("years of work")
    assert "exists: choose another" in mistake(capsys, *QUICK, "--run-dir", str(tmp_path))
    assert (tmp_path / "results.txt").read_text() == "years of work"


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run directory, and the printed output."""
    directory, printed = tmp_path_factory.mktemp("fused") / "run", io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main([*QUICK, "--json", "--seed", "3", "--run-dir", str(directory)]) == 0
    return directory, printed.getvalue()


def test_json_prints_the_summary_and_nothing_else(fused: tuple[Path, str]) -> None:
    directory, summary = fused[0], json.loads(fused[1])
    assert {
        "algorithm", "env", "policy", "engine", "replicas", "seed", "total_steps", "iterations", "steps_per_second",
        "compile_seconds", "wall_seconds", "return_mean", "params_sha256",
    } <= set(summary)  # fmt: skip
    assert summary == json.loads((directory / "summary.json").read_text())
    assert (summary["seed"], summary["total_steps"], summary["iterations"]) == (3, 512, 4)
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [0, 1, 2, 3]
    assert {"steps", "return_mean", "entropy", "kl", "value_loss"} <= set(lines[0])
    config = json.loads((directory / "config.json").read_text())
    assert config["hyper_parameters"]["num_envs"] == 8
    assert (directory / "graph.mmd").read_text().startswith("flowchart")
    arrays = load_file(directory / "params.safetensors")
    assert all(np.isfinite(array).all() for array in arrays.values())
    assert "policy.params.kernel_0" in arrays


def test_progress_and_the_same_result_under_another_policy(capsys: Any, tmp_path: Path, fused: Any) -> None:
    fingerprints = [json.loads(fused[1])["params_sha256"]]
    for policy in ("gpu_only", "single_learner_fine"):
        flags = ["--policy", policy, "--seed", "3", "--no-merge", "--run-dir", str(tmp_path / policy)]
        assert main([*QUICK, *flags]) == 0
        text = capsys.readouterr().out
        assert "compiled in" in text
        assert "steps/s" in text
        assert "8 envs, 128 steps" in text
        fingerprints.append(json.loads((tmp_path / policy / "summary.json").read_text())["params_sha256"])
    assert len(set(fingerprints)) == 1


def test_the_users_own_error_keeps_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_broken.py").write_text("def broken(stages, cluster):\n    return stages[99]\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(IndexError) as raised:
        main([*QUICK, "--policy", "my_broken:broken"])
    assert raised.traceback[-1].path.name == "my_broken.py"


@pytest.mark.full
def test_graph_policies_doctor_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", "ppo", "Pendulum-v1", "--policy", "single_learner_fine"]) == 0
    assert "policy single_learner_fine" in capsys.readouterr().out
    assert main(["graph", "ppo", "CartPole-v1", "--format", "mermaid"]) == 0
    assert capsys.readouterr().out.startswith("flowchart")
    assert main(["policies"]) == 0
    listed = capsys.readouterr().out
    assert all(f"\n{name}" in listed for name in POLICIES)
    assert "learner -> actor: Broadcast: 36.9 KB" in listed
    assert "among learner: AllReduce, x32: 2.3 MB" in listed
    assert main(["policies", "impala", "CartPole-v1", "--replicas", "4", "--horizon", "8", "--num-envs", "64"]) == 0
    listed = capsys.readouterr().out
    assert "IMPALA on CartPole-v1, 64 environments" in listed
    assert "- actor x4: act, step" in listed
    assert "actor -> learner: Gather, any" in listed
    assert main(["doctor"]) == 0
    assert "cpu:0" in capsys.readouterr().out
    assert main(["--help"]) == 0
    assert "fragmenta train ppo CartPole-v1" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        main(["train", "ppo", "--help"])
    assert stop.value.code == 0
    assert "--num-envs" in capsys.readouterr().out


def test_a_graph_is_drawn_into_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = ["graph", "ppo", "CartPole-v1", "--replicas", "2"]
    assert main([*graph, "--format", "svg"]) == 0
    printed = capsys.readouterr().out
    for name in ("graph.svg", "graph.png", "graph.mmd"):
        assert main([*graph, "--out", str(tmp_path / name)]) == 0
        assert capsys.readouterr().out == f"graph: {tmp_path / name}\n"
    assert (tmp_path / "graph.svg").read_text() == printed
    root = ElementTree.fromstring(printed)
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"actor x2", "act, step", "learner", "learn"} <= set(texts)
    assert sum(element.get("class") == "arrow" for element in root.iter("{http://www.w3.org/2000/svg}path")) == 2
    width, height = struct.unpack(">II", (tmp_path / "graph.png").read_bytes()[16:24])
    assert (width, height) == pytest.approx((2 * float(root.attrib["width"]), 2 * float(root.attrib["height"])), abs=2)
    assert (tmp_path / "graph.mmd").read_text().startswith("flowchart LR")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--format", "png"], "give the file to write, as in --out graph.png"),
        (["--out", "graph.pdf"], "choose a name that ends in .txt, .mmd, .svg, .png, or give --format"),
        (["--out", "graph.png", "--format", "svg"], "format is svg, but out is 'graph.png'"),
        (["--out", "no/graph.png"], "there is no directory 'no'"),
    ],
)
def test_mistakes_about_the_file_of_a_graph_are_one_line(flags: list[str], message: str, capsys: Any) -> None:
    assert message in mistake(capsys, "graph", "ppo", "CartPole-v1", *flags)


@pytest.mark.full
def test_a_user_defined_policy_and_cpu_devices_that_are_created_before_jax_starts(tmp_path: Path) -> None:
    """In a separate process, because this one has created its devices already."""
    (tmp_path / "mine.py").write_text(
        "from fragmenta import Fragment\n"
        "def learners(stages, cluster):\n"
        "    return [Fragment('mine', stages, cluster.one_each(cluster.replicas), cluster.replicas, 'envs')]\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    command = [sys.executable, "-m", "fragmenta.cli.main", *QUICK, "--policy", "mine:learners", "--replicas", "2"]
    completed = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert completed.returncode == 2
    assert completed.stderr == (
        "fragmenta: 2 replicas need a device each, but there are 1 (cpu:0): "
        "use --replicas 1, or on a CPU --cpu-devices 2\n"
    )
    command += ["--cpu-devices", "2", "--json"]
    completed = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert completed.returncode == 0, completed.stderr
    summary = json.loads(completed.stdout)
    assert (summary["policy"], summary["replicas"]) == ("mine:learners", 2)
