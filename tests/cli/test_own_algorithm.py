"""User-defined algorithms, as `module:Class`, in every command."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fragmenta
import small_algorithm
from fragmenta.cli.main import main

MORE = """
class NotDecorated(Reinforce):
    width: int = 3

@dataclasses.dataclass(frozen=True)
class Clashes(Reinforce):
    seed: int = 3

@dataclasses.dataclass(frozen=True, kw_only=True)
class Asks(Reinforce):
    width: int

    def __post_init__(self):
        if self.width < 1:
            raise ValueError(f"width is {self.width}")

@dataclasses.dataclass(frozen=True)
class CannotPlay(Reinforce):
    decide = Algorithm.decide

    @stage
    def act(self, env, params, observation, keys):
        return Reinforce.decide(self, env, params, observation, None, (), keys)[0]

number = 3
"""
SIZES = ("--num-envs", "4", "--total-steps", "48", "--json")


@pytest.fixture(autouse=True)
def own_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the test in a folder with the user's modules."""
    folder = tmp_path_factory.getbasetemp() / "own"
    if not folder.exists():
        folder.mkdir()
        (folder / "my_module.py").write_text(Path(small_algorithm.__file__).read_text() + MORE)
        (folder / "needs_more.py").write_text("import not_installed_anywhere\n")
        (folder / "raises.py").write_text("def half():\n    return 1 / 0\n\nhalf()\n")
    monkeypatch.chdir(folder)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:Mine", "cannot load algorithm 'no_such_module:Mine': No module named 'no_such_module'"),
        ("my_module.inner:Mine", "No module named 'my_module.inner'"),
        ("my_module:Reinfroce", "'my_module' has no Reinfroce: did you mean 'Reinforce'?"),
        ("my_module:number.real.x", "'my_module' has no number.real.x"),
        ("my_module:", "write it as module:Class"),
        (":Mine", "write it as module:Class"),
        ("my_module:number", "'my_module:number' is not an algorithm class: derive it from fragmenta.Algorithm"),
        ("my_module:State", "'my_module:State' is not an algorithm class"),
        ("my_module:NotDecorated", "is not a dataclass: write @dataclasses.dataclass(frozen=True) above the class"),
        ("fragmenta:Algorithm", "'fragmenta:Algorithm' has no method init"),
        ("my_module:Clashes", "has a field 'seed', and 'fragmenta train' has a flag of that name"),
        ("my_module:Asks", "--width INT (required)"),
        ("my_modul", "unknown algorithm 'my_modul': choose from a2c, ddpg, dqn, fast_td3, impala, ippo, maddpg, mappo"),
    ],
)
def test_mistakes_get_one_line(name: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", name, "CartPole-v1"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert message in output.err


@pytest.mark.parametrize(("module", "error"), [("raises", ZeroDivisionError), ("needs_more", ModuleNotFoundError)])
def test_an_error_in_the_users_module_keeps_its_traceback(module: str, error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        main(["train", f"{module}:Mine", "CartPole-v1"])
    assert raised.traceback[-1].path.name == f"{module}.py"


def test_its_fields_are_its_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "my_module:Reinforce", "--help"])
    listed = capsys.readouterr().out
    assert "Steps per iteration." in listed
    assert all(flag in listed for flag in ("--num-envs", "--horizon", "--learning-rate", "--no-center", "--policy"))
    for flags, message in (
        (["--learning-rat", "1"], "unknown flag '--learning-rat': did you mean --learning-rate?"),
        (["--horizon", "long"], "Error parsing --horizon: 'long' is not a whole number"),
    ):
        assert main(["train", "my_module:Reinforce", "CartPole-v1", *flags]) == 2
        assert message in capsys.readouterr().err
    assert main(["train", "my_module:Asks", "CartPole-v1", "--width", "0"]) == 2
    assert "width is 0" in capsys.readouterr().err


@pytest.mark.full
def test_every_command_works_on_its_run(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--learning-rate", "1e-3", "--no-center", *SIZES]
    assert main(["train", "my_module:Reinforce", "CartPole-v1", "--run-dir", "run", *flags]) == 0
    assert json.loads(capsys.readouterr().out)["algorithm"] == "my_module:Reinforce"
    config = json.loads(Path("run/config.json").read_text())
    assert config["algorithm"] == "my_module:Reinforce"
    assert config["hyper_parameters"] == {
        "num_envs": 4, "total_steps": 48, "horizon": 4, "learning_rate": 1e-3, "center": False
    }  # fmt: skip
    resume_flags = ["--total-steps", "96", "--policy", "single_learner_coarse", "--json"]
    assert main(["resume", "run", *resume_flags]) == 0
    assert json.loads(capsys.readouterr().out)["iterations"] == 6
    assert main(["eval", "run", "--episodes", "2", "--max-steps", "20"]) == 0
    assert "my_module:Reinforce on CartPole-v1" in capsys.readouterr().out
    assert main(["play", "run", "--episodes", "1", "--max-steps", "5"]) == 0
    assert main(["export", "run"]) == 0
    assert main(["trace", "run", "--iterations", "2"]) == 0
    assert main(["graph", "run"]) == 0
    assert "policy single_learner_coarse" in capsys.readouterr().out


def test_it_is_drawn_and_listed_like_the_built_in_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", "my_module:Reinforce", "CartPole-v1", "--horizon", "7"]) == 0
    assert "loop x7" in capsys.readouterr().out
    assert main(["policies", "my_module:Reinforce", "CartPole-v1"]) == 0
    assert "Reinforce on CartPole-v1, 4 environments, 2 replicas" in capsys.readouterr().out


@pytest.mark.full
def test_a_missing_method_is_reported_by_the_command_that_needs_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "my_module:CannotPlay", "CartPole-v1", "--run-dir", "mute", *SIZES]) == 0
    capsys.readouterr()
    assert main(["eval", "mute"]) == 2
    assert "CannotPlay does not define how to act after training: implement its decide()" in capsys.readouterr().err


@pytest.mark.full
def test_devices_are_created_before_its_module_creates_arrays() -> None:
    """In separate processes, because this one has created its devices already."""
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    flags = ["my_module:Reinforce", "CartPole-v1", "--policy", "multi_learner", "--replicas", "2"]
    for command in (["train", *flags, *SIZES, "--cpu-devices", "2", "--run-dir", "two"], ["verify", *flags]):
        arguments = [sys.executable, "-m", "fragmenta.cli.main", *command]
        completed = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=120)
        assert completed.returncode == 0, completed.stderr
    assert "multi_learner          x2  equal" in completed.stdout


@pytest.mark.full
def test_processes_find_its_module(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--policy", "single_learner_coarse", "--replicas", "2", "--engine", "processes"]
    assert main(["verify", "my_module:Reinforce", "CartPole-v1", *flags]) == 0
    assert "1 equal" in capsys.readouterr().out


@pytest.mark.full
def test_an_environment_in_jax_of_ones_own_is_named_like_the_others(tmp_path: Path, monkeypatch: Any) -> None:
    """By `module:Class`, with the fields of the class as its arguments; the run can be opened again."""
    source = (
        "import dataclasses\nfrom fragmenta.envs.classic import CartPole\n\n\n@dataclasses.dataclass(frozen=True)\n"
    )
    (tmp_path / "my_envs.py").write_text(source + "class Heavy(CartPole):\n    max_steps: int = 20\n")
    monkeypatch.syspath_prepend(tmp_path)
    run = tmp_path / "run"
    flags = ["--num-envs", "4", "--horizon", "8", "--hidden", "8", "--total-steps", "64", "--run-dir", str(run)]
    assert main(["train", "a2c", "my_envs:Heavy", "--env-args", '{"max_steps": 30}', *flags]) == 0
    opened = fragmenta.load(run)
    assert (type(opened.env).__name__, opened.env.max_steps) == ("Heavy", 30)
    assert main(["train", "a2c", "my_envs:Heavy", "--env-args", '{"size": 30}']) == 2
    assert main(["train", "a2c", "my_envs:Heavy", "--env-mode", "threads"]) == 2  # it is not stepped on the host
