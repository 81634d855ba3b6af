"""`fragmenta compare` and `fragmenta report`."""

import subprocess
import sys
from pathlib import Path

import pytest

from fragmenta.cli.main import main
from made_runs import made_run


def mistake(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("fragmenta: ")
    return captured.err


def test_compare_prints_a_table_and_draws_a_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(made_run(tmp_path / f"a{seed}", seed)) for seed in (0, 1, 2)]
    runs += [str(made_run(tmp_path / "b", 0, slope=1.0, learning_rate=0.01))]
    out = tmp_path / "picture.png"
    assert main(["compare", *runs, "--out", str(out), "--share", "0.5"]) == 0
    text = capsys.readouterr().out
    assert "learning_rate 0.001" in text
    assert "185.0 to 187.0" in text
    assert "2.2 s, 2.2k steps" in text
    assert out.read_bytes().startswith(b"\x89PNG")
    first = out.read_bytes()
    assert main(["compare", "--out", str(out), "--share", "0.5", *runs]) == 0
    assert capsys.readouterr().out == text
    assert out.read_bytes() == first


def test_a_single_run_is_drawn_without_an_interval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "picture.svg"
    assert main(["compare", str(made_run(tmp_path / "a")), "--out", str(out)]) == 0
    assert " to " not in capsys.readouterr().out
    assert "<svg" in out.read_text()


def test_report_writes_the_page_into_the_run_or_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run(tmp_path / "run")
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out == f"report: {run / 'report.html'}\n"
    assert main(["report", str(run), "--out", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_text() == (run / "report.html").read_text()


def test_a_report_on_several_runs_is_written_here(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        made_run(tmp_path / name)
    assert main(["report", "a", "b"]) == 0
    assert capsys.readouterr().out == "report: report.html\n"
    assert "fragmenta play b" in (tmp_path / "report.html").read_text()
    assert "run 'a' is given twice" in mistake(capsys, "report", "a", "a")


@pytest.mark.parametrize("command", ["compare", "report"])
def test_a_bad_run_is_one_line(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "there is no run directory 'nowhere'" in mistake(capsys, command, "nowhere")
    run = made_run(tmp_path / "run")
    (run / "metrics.jsonl").write_text("")
    assert "is empty: wait for its first iteration" in mistake(capsys, command, "run")
    (run / "metrics.jsonl").unlink()
    assert "has no metrics.jsonl" in mistake(capsys, command, "run")
    assert "usage: fragmenta" in mistake(capsys, command)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "run", "run"], "run 'run' is given twice"),
        (["compare", "run", "--out", "picture.txt"], "must end in .png, .svg or .pdf"),
        (["compare", "run", "--out", "no/picture.png"], "there is no directory 'no'"),
        (["compare", "run", "--share", "0"], "share is 0.0"),
        (["compare", "run", "--oot", "x"], "unknown flag '--oot': did you mean --out?"),
        (["compare", "silent"], "no episode ended in run 'silent'"),
        (["report", "run", "--out", "page.pdf"], "must end in .html"),
        (["report", "run", "--out", "no/page.html"], "cannot write 'no/page.html': No such file or directory"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    made_run(tmp_path / "run")
    silent = made_run(tmp_path / "silent")
    (silent / "metrics.jsonl").write_text('{"iteration": 0, "steps": 10, "seconds": 1.0, "episodes": 0}\n')
    assert message in mistake(capsys, *arguments)


def test_without_rliable_one_line_says_what_to_install(tmp_path: Path, capsys, monkeypatch) -> None:
    runs = [str(made_run(tmp_path / f"a{seed}", seed)) for seed in (0, 1)]
    monkeypatch.setitem(sys.modules, "rliable", None)
    message = mistake(capsys, "compare", *runs, "--out", str(tmp_path / "picture.png"))
    assert "pip install 'fragmenta[compare]'" in message


@pytest.mark.full
def test_the_command_line_starts_without_a_plotting_library() -> None:
    heavy = ("matplotlib", "pandas", "rliable")
    loaded = f"import sys, fragmenta, fragmenta.cli.train; print([m for m in {heavy} if m in sys.modules])"
    completed = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, timeout=120, check=True)
    assert completed.stdout == "[]\n"
