"""Configuration files: `--print-config` writes what `--config` reads; flags win."""

import json
from pathlib import Path

import pytest

from fragmenta.cli.main import main

FLAGS = ["--num-envs", "8", "--horizon", "16", "--hidden", "8", "16", "--total-steps", "5.12e2", "--no-merge"]


def printed_config(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["train", *arguments, "--print-config"]) == 0
    return capsys.readouterr().out


def test_a_printed_configuration_is_read_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    env_args = ["--env-args", '{"name": "ü \\" x"}', "--policy", "single_learner_fine", "--run-dir", "a b"]
    text = printed_config(capsys, "PPO", "CartPole-v1", *FLAGS, *env_args)
    for line in ('algorithm = "ppo"', 'environment = "CartPole-v1"', "hidden = [8, 16]", "total_steps = 512"):
        assert line in text.splitlines()
    assert "# replicas =" in text
    (tmp_path / "a.toml").write_text(text)
    assert printed_config(capsys, "--config", str(tmp_path / "a.toml")) == text


def test_flags_win_over_the_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text('algorithm = "a2c"\nmerge = false\nkeep_best = false\nhidden = [4]\nnum_envs = 2\n')
    flags = ["--merge", f"--config={path}", "--hidden", "8", "8", "--num-envs=6"]
    lines = printed_config(capsys, "ppo", "Pendulum-v1", *flags).splitlines()
    expected = ["merge = true", "keep_best = false", "hidden = [8, 8]", "num_envs = 6", 'algorithm = "ppo"']
    assert set(expected) <= set(lines)


@pytest.mark.full
def test_training_from_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = printed_config(capsys, "ppo", "CartPole-v1", *FLAGS, "--json", "--run-dir", str(tmp_path / "run"))
    (tmp_path / "a.toml").write_text(text)
    assert main(["train", "--config", str(tmp_path / "a.toml"), "--seed", "3"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["algorithm"], summary["env"], summary["seed"], summary["total_steps"]) == (
        "ppo", "CartPole-v1", 3, 512,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr = 0.1", "unknown key 'lr' in config 'a.toml': did you mean 'learning_rate'?"),
        ("horizn = 8", "did you mean 'horizon'?"),
        ("config = 'b.toml'", "unknown key 'config'"),
        ("[ppo]\nclip = 0.1", "unknown key 'ppo'"),
        ("[clip]\nvalue = 0.1", "clip is {\"value\": 0.1} in config 'a.toml': expected a value as on the command line"),
        ("merge = 'no'", "merge is \"no\" in config 'a.toml': expected true or false"),
        ("clip = true", "clip is true in config 'a.toml'"),
        ("clip = 'much'", "Error parsing --clip: 'much' is not a number"),
        ("clip = -1.0", "clip is -1.0: it must be more than 0"),
        ("clip", "config 'a.toml' is not TOML: "),
        (None, "cannot read config 'a.toml': No such file or directory"),
    ],
)
def test_mistakes_get_one_line(
    text: str | None, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("a.toml").write_text(text)
    assert main(["train", "ppo", "CartPole-v1", "--config", "a.toml"]) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.err.count("\n") == 1
