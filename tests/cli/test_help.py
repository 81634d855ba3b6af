"""Help, version, completion, and output that nobody reads to its end."""

import dataclasses
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fragmenta
from fragmenta.algorithms import ALGORITHMS
from fragmenta.cli.main import COMMANDS, main

FLAG_OF = {
    "train": "--total-steps", "resume": "--total-steps", "eval": "--episodes", "play": "--out", "compare": "--share",
    "report": "--out", "export": "--out", "graph": "--format", "verify": "--iterations", "trace": "--iterations",
    "check-env": "--num-envs", "policies": "--replicas", "doctor": "--help", "completion": "bash",
    "sweep": "--search", "runs": "--help", "zoo": "--seeds", "plan": "--scale",
}  # fmt: skip


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The output of a command that ends by printing."""
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    assert not stop.value.code
    return capsys.readouterr().out


def printed_help(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The help without frames and line breaks."""
    return re.sub(r"[╭╮╰╯│─\s]+", " ", printed(capsys, *arguments, "--help"))


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "train"])
def test_every_command_lists_its_flags(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed_help(capsys, command)
    assert text.startswith(f"usage: fragmenta {command}")
    assert FLAG_OF[command] in text


def test_help_without_an_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed_help(capsys, "train")
    assert "usage: fragmenta train ALGORITHM ENVIRONMENT" in text
    assert "--checkpoint-every INT" in text
    assert all(name in text for name in (*ALGORITHMS, "CartPole-v1"))
    assert "Probe" not in text


def test_groups_are_named_and_ordered_by_need(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed_help(capsys, "train", "ppo")
    titles = ["hyper-parameters", "result", "environment", "placement", "saving", "evaluation", "processes"]
    places = [text.index(f" {title} options ") for title in titles]
    assert places == sorted(places)
    assert text.index("--gamma") < places[1]


def test_values_are_shown_by_their_type_and_sentences_are_whole(capsys: pytest.CaptureFixture[str]) -> None:
    frames = printed(capsys, "train", "ppo", "--help")
    assert "None}" not in frames
    assert "--stop-at-return FLOAT" in frames
    flags = [line for line in frames.splitlines() if "│" in line]
    # A line that ends early before a word that would have fitted is a break inside of a docstring.
    for line, following in itertools.pairwise(flags):
        text, word = line.strip("│ "), (following.strip("│ ").split() or [""])[0]
        same = line.startswith("│   ") and following.startswith("│   ") and text and word
        assert not same or len(line.rstrip("│ ")) + len(word) + 2 > len(line.rstrip("│")) - 1, line


def test_distribution_policies_are_listed_for_any_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed_help(capsys, "policies").startswith("usage: fragmenta policies ALGORITHM ENVIRONMENT")


def test_a_negated_flag_says_what_it_negates(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed_help(capsys, "train", "ppo")
    assert "--merge, --no-merge Merge fragments and replicas that share a device. (default: True)" in text


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_hyper_parameter_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed_help(capsys, "train", name)
    for field in dataclasses.fields(ALGORITHMS[name]):
        flag = f"--{field.name.replace('_', '-')}"
        value = r"( INT| FLOAT| STR| \[(INT|STR) \[(INT|STR) \.\.\.\]\])?"
        described = re.search(rf" {flag}(, --no-\S+)?{value} [A-Z0-9][\w-]+ ", text)
        assert described, f"{flag} has no help"


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"fragmenta {fragmenta.__version__}\n"


@pytest.mark.full
def test_completion_in_bash(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "script").write_text(printed(capsys, "completion", "bash"))
    ask = 'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _tyro_fragmenta; echo "${COMPREPLY[*]}"'

    def completed(*words: str) -> list[str]:
        command = ["bash", "-c", f"source {tmp_path / 'script'}; {ask}", "bash", "fragmenta", *words]
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.split()

    assert set(COMMANDS) <= set(completed(""))
    assert completed("train", "pp") == ["ppo", "ppo_gru"]
    assert completed("train", "ppo", "CartPole-v1", "--policy", "single_learner_c") == ["single_learner_coarse"]
    assert completed("resume", "runs/a", "--policy", "multi") == ["multi_learner"]
    assert completed("train", "impala", "CartPole-v1", "--trace-d") == ["--trace-decay"]
    assert completed("eval", "runs/a", "--epi") == ["--episodes"]


@pytest.mark.full
def test_completion_in_zsh(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "completion", "zsh").startswith("#compdef fragmenta")


@pytest.mark.full
@pytest.mark.brief("policies")
@pytest.mark.parametrize("arguments", ["policies", "completion bash", "train ppo --help"])
def test_a_reader_that_ends_first_is_no_error(arguments: str) -> None:
    command = f"set -o pipefail; {sys.executable} -m fragmenta.cli.main {arguments} | true"
    completed = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert completed.returncode == 141
    assert completed.stderr == ""
