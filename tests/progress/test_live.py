"""The terminal view of a run, at any width."""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from rich.console import Console

from fragmenta.progress.live import Picture, clock, sparkline
from fragmenta.progress.watching import Progress

RECORD = {
    "iteration": 61, "steps": 31_744, "seconds": 30.0, "episodes": 3, "return_mean": 200.0, "length_mean": 200.0,
    "policy_loss": -0.0123, "value_loss": 12.3, "entropy": 0.53, "kl": 0.0031, "explained_variance": 0.87, "lag": 1,
    "steps_per_second": 152_300.0, "busy/actor": 0.625, "busy/learner": 0.5, "fill/trajectory": 0.75,
    "fill/parameters": 0.0, "memory_mb": 812.0, "device_memory_mb": 1_203.0,
}  # fmt: skip


def drawn_lines(width: int, returns: list[float | None], encoding: str = "utf-8") -> list[str]:
    picture = Picture()
    for i, value in enumerate(returns):
        picture.add(Progress(i + 1, 2 * len(returns), 512 * (i + 1), 152_300.0, value, RECORD))
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(width=width, file=file, force_terminal=False, color_system=None).print(picture)
    file.seek(0)
    return file.read().splitlines()


@pytest.mark.parametrize("width", [80, 140])
def test_the_view_fits_and_is_complete(width: int) -> None:
    lines = drawn_lines(width, [float(i) for i in range(2_000)])
    assert max(map(len, lines)) <= width
    assert len(lines) <= 8
    text = "\n".join(lines)
    for part in ("50%", "0:30 left", "1999.0", "152,300 steps/s", "1,024,000 of 2,048,000 steps", "lag 1", "812 MB"):
        assert part in text
    assert re.search(r"actor +█+ +62%", text)
    assert re.search(r"trajectory █+ +75%", text)
    (losses,) = (line for line in lines if line.startswith("losses"))
    for part in ("policy -0.0123", "value 12.3", "entropy 0.53", "kl 3e-03", "explained 0.87"):
        assert part in losses
    sparks = next(re.search("[▁▂▃▄▅▆▇█]+", line) for line in lines if line.startswith("return"))
    assert sparks is not None
    assert sparks[0][0] == "▁"
    assert sparks[0][-1] == "█"
    assert len(sparks[0]) > width / 2


def test_a_run_of_days_has_its_time_on_one_line() -> None:
    record = {**RECORD, "seconds": 100_000.0}
    picture = Picture()
    picture.add(Progress(1, 3, 512, 1.0, 1.0, record))
    file = io.StringIO()
    Console(width=80, file=file, force_terminal=False, color_system=None).print(picture)
    assert re.search(r"33% +55:33:20 left$", file.getvalue().splitlines()[0])


def test_a_terminal_without_unicode() -> None:
    text = "\n".join(drawn_lines(80, [1.0, 2.0], encoding="ascii"))
    assert text.isascii()
    assert re.search(r"actor +#+ +62%", text)


def test_before_the_first_episode_ends() -> None:
    assert any(line.startswith("return   -") for line in drawn_lines(80, [None, None]))


def test_a_long_run_is_a_short_curve() -> None:
    assert sparkline([], 10) == ""
    assert sparkline([5.0, 5.0], 10) == "▁▁"
    assert sparkline([0.0, 7.0], 10) == "▁█"
    assert len(sparkline([float(i) for i in range(1_000)], 30)) == 30
    assert clock(59.6) == "1:00"
    assert clock(3_725) == "1:02:05"


@pytest.mark.full
def test_a_run_in_a_terminal(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fragmenta.cli.main", "train", "ppo", "CartPole-v1", "--num-envs", "8"]
    command += ["--horizon", "16", "--hidden", "8", "--total-steps", "5120", "--run-dir", str(tmp_path / "run")]
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    child = subprocess.Popen(command, stdout=terminal, stderr=terminal, env=os.environ | {"TERM": "xterm"})
    os.close(terminal)
    output = b""
    try:
        while part := os.read(screen, 65_536):
            output += part
    except OSError:  # how Linux reports that the other side has closed
        pass
    finally:
        os.close(screen)
    assert child.wait(100) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.decode())
    assert "compiled in" in text
    assert "100%" in text
    assert output.count(b"\x1b[?25l") == output.count(b"\x1b[?25h"), "the cursor is shown again"
    for command in ("eval  ", "play  ", "report", "resume"):
        assert f"fragmenta {command} {tmp_path / 'run'}" in text
