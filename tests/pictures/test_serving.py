"""A live report: what is served, to whom, and how it ends."""

import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fragmenta.cli.main import main
from made_runs import made_run

COMMAND = [sys.executable, "-m", "fragmenta.cli.main", "report", "--watch"]


class Watched:
    """A report that another process serves."""

    def __init__(self, *runs: Path) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *map(str, runs)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("report: http://127.0.0.1:"), line
        self.port = int(line.split(":")[3].partition("/")[0])

    def get(self, path: str = "/", **headers: str) -> tuple[int, str, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), answer.headers.get("ETag", "")
        finally:
            connection.close()

    def end(self) -> tuple[int, str, str]:
        self.process.send_signal(signal.SIGINT)
        out, err = self.process.communicate(timeout=20)
        return self.process.returncode, out, err


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Watched, Path]]:
    run = made_run(tmp_path_factory.mktemp("runs") / "run", finished=False)
    served = Watched(run)
    try:
        yield served, run
    finally:
        assert served.end() == (0, "", ""), "it ends quietly"


def test_the_page_follows_the_run(watched: tuple[Watched, Path]) -> None:
    served, run = watched
    status, page, tag = served.get()
    assert status == 200
    assert "4,000 of 4,000 steps are recorded" in page
    assert "connect-src 'self'" in page
    assert served.get(If_None_Match=tag)[:2] == (304, "")
    with (run / "metrics.jsonl").open("a") as file:
        file.write(
            json.dumps({"iteration": 40, "steps": 4100, "seconds": 4.1, "episodes": 1, "return_mean": 9.0}) + "\n"
        )
    status, page, _ = served.get(If_None_Match=tag)
    assert status == 200
    assert "4,100 of 4,000 steps are recorded" in page


def test_nothing_but_the_report_is_served_and_only_to_this_machine(watched: tuple[Watched, Path]) -> None:
    served, _ = watched
    for path in ("/config.json", "/../config.json", "/metrics.jsonl", "/?x", "/etc/passwd"):
        assert served.get(path)[0] == 404, path
    assert served.get(Host="evil.example")[0] == 403
    assert served.get(Host="localhost:8000")[0] == 200, "a forwarded port"


@pytest.mark.full
def test_a_run_before_its_first_iteration_and_several_runs(tmp_path: Path) -> None:
    young, old = made_run(tmp_path / "young", finished=False), made_run(tmp_path / "old")
    lines = (young / "metrics.jsonl").read_text()
    (young / "metrics.jsonl").write_text("")
    served = Watched(young, old)
    try:
        assert "wait for its first iteration" in served.get()[1]
        (young / "metrics.jsonl").write_text(lines)
        assert "<h1>2 runs: ppo on CartPole-v1</h1>" in served.get()[1]
    finally:
        served.end()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "--watch"], "there is no run directory 'nowhere'"),
        (["run", "--watch", "--out", "a.html"], "out is 'a.html', but --watch writes no file"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    made_run(tmp_path / "run")
    assert main(["report", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
