"""Commands in messages work as printed, however the program was called."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fragmenta.cli.main import main
from made_runs import made_run


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A directory with `.venv/bin/fragmenta`, as pip writes it, and a run."""
    program = tmp_path / ".venv" / "bin" / "fragmenta"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!{sys.executable}\nimport sys\nfrom fragmenta.cli.main import main\nsys.exit(main())\n")
    program.chmod(0o755)
    made_run(tmp_path / "my run")
    return tmp_path


def printed(installed: Path, *command: str, path: str = "") -> str:
    environment = os.environ | {"PATH": f"{path}{os.pathsep}{os.environ['PATH']}" if path else "/usr/bin:/bin"}
    completed = subprocess.run(command, cwd=installed, env=environment, capture_output=True, text=True, timeout=120)
    return completed.stdout + completed.stderr


@pytest.mark.full
def test_a_program_called_by_its_path_prints_its_path(installed: Path) -> None:
    assert "usage: .venv/bin/fragmenta eval RUN" in printed(installed, ".venv/bin/fragmenta", "eval")
    message = printed(installed, ".venv/bin/fragmenta", "graph", "./my run")
    printed(installed, ".venv/bin/fragmenta", "report", "my run")
    page = (installed / "my run" / "report.html").read_text()
    assert ".venv/bin/fragmenta resume &#x27;my run&#x27;" in page
    assert "Traceback" not in message


@pytest.mark.full
def test_a_program_that_the_shell_finds_prints_its_name(installed: Path) -> None:
    folder = str(installed / ".venv" / "bin")
    assert "usage: fragmenta eval RUN" in printed(installed, "fragmenta", "eval", path=folder)
    assert "usage: fragmenta eval RUN" in printed(installed, ".venv/bin/fragmenta", "eval", path=folder)


def test_other_programs_print_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval"]) == 2
    assert "usage: fragmenta eval RUN" in capsys.readouterr().err
