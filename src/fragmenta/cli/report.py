"""`fragmenta report`: write an HTML report on one or several runs."""

import dataclasses
from pathlib import Path

import tyro

from fragmenta.cli.arguments import read_flags
from fragmenta.command import command
from fragmenta.errors import ConfigError
from fragmenta.pictures.report import report_page
from fragmenta.pictures.run_files import read_run_files
from fragmenta.pictures.serving import serve_report
from fragmenta.runs.describing import only_in_python
from fragmenta.runs.run_directory import read_config

NEXT = ("resume", "eval", "play", "trace")


@dataclasses.dataclass(frozen=True)
class ReportOptions:
    """The runs to report on, and where to write the report."""

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run directories; the curves of several are drawn in the same charts."""
    out: Path | None = None
    """The file to write. Default: report.html, in the run directory if there is only one."""
    watch: bool = False
    """Serve a live page at an address of this machine instead of writing a file, until Ctrl-C."""


def run(arguments: list[str]) -> int:
    """Read the runs, write the report."""
    options = read_flags("report", ReportOptions, arguments)
    if not options.runs:
        raise ConfigError(f"usage: {command()} report RUN [RUN ...] [--out FILE.html]")
    if repeated := [path for i, path in enumerate(options.runs) if path in options.runs[:i]]:
        raise ConfigError(f"run '{repeated[0]}' is given twice: name each run once")
    commands = [next_commands(path) for path in options.runs]
    if options.watch:
        return _watch(options, commands)
    out = options.out or (options.runs[0] / "report.html" if len(options.runs) == 1 else Path("report.html"))
    if out.suffix not in (".html", ".htm"):
        raise ConfigError(f"out is '{out}': its name must end in .html")
    page = report_page([read_run_files(path) for path in options.runs], commands)
    try:
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write '{out}': {error.strerror}") from None
    print(f"report: {out}")
    return 0


def _watch(options: ReportOptions, commands: list[list[str]]) -> int:
    if options.out:
        raise ConfigError(f"out is '{options.out}', but --watch writes no file: leave one of the two out")
    for path in options.runs:
        read_config(path)
    serve_report(options.runs, commands, lambda address: print(f"report: {address} (Ctrl-C ends it)", flush=True))
    return 0


def next_commands(path: Path) -> list[str]:
    """Suggested next commands for a run, or how Python opens it where no command can."""
    opened = only_in_python(path, read_config(path))
    return [opened] if opened else [command(verb, str(path)) for verb in NEXT]
