"""`fragmenta report`: write an HTML report on a run."""

import dataclasses
import shlex
from pathlib import Path

from fragmenta.cli.arguments import read_options
from fragmenta.errors import ConfigError
from fragmenta.pictures.report import report_page
from fragmenta.pictures.run_files import read_run_files

NEXT = ("resume", "eval", "play", "trace")


@dataclasses.dataclass(frozen=True)
class ReportOptions:
    """Where to write the report."""

    out: Path | None = None
    """The file to write. Default: report.html in the run directory."""


def run(arguments: list[str]) -> int:
    """Read the run, write the report."""
    name, options = read_options("report", "RUN", ReportOptions, arguments)
    files = read_run_files(name)
    out = options.out or files.path / "report.html"
    if out.suffix not in (".html", ".htm"):
        raise ConfigError(f"out is '{out}': its name must end in .html")
    try:
        out.write_text(report_page(files, next_commands(name)), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write '{out}': {error.strerror}") from None
    print(f"report: {out}")
    return 0


def next_commands(name: str) -> list[str]:
    """Suggested next commands for a run."""
    return [f"fragmenta {command} {shlex.quote(name)}" for command in NEXT]
