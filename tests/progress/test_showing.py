"""What a script and a notebook see of a run, and how results, runs, plans and graphs show themselves."""

import io
import sys
import types
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import gymnasium
import numpy as np
import pytest

import fragmenta
from fragmenta import PPO, Cluster
from fragmenta.cli.main import main

TINY = PPO(num_envs=4, horizon=32, hidden=(8,), minibatches=2, epochs=1, total_steps=10 * 128)


@pytest.mark.full
def test_a_script_sees_lines_on_standard_error_unless_it_does_not_want_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fragmenta.train(TINY, "CartPole-v1", run_dir=tmp_path / "run")
    shown = capsys.readouterr()
    assert shown.out == "", "standard output belongs to the script"
    assert "distribution policy fused" in shown.err
    assert "step        1,280  return" in shown.err
    assert f"run directory {tmp_path / 'run'}" in shown.err
    fragmenta.train(TINY, "CartPole-v1")
    assert "run directory" not in capsys.readouterr().err
    fragmenta.train(TINY, "CartPole-v1", progress=False)
    assert capsys.readouterr() == ("", "")
    fragmenta.resume(tmp_path / "run", total_steps=20 * 128, progress=False)
    assert capsys.readouterr() == ("", "")


class Unnamed(gymnasium.Env):
    """Has no name in another process if an object of it is given."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        return np.zeros(1, np.float32), 1.0, True, False, {}


@pytest.mark.full
def test_commands_that_cannot_open_a_run_are_not_suggested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    fragmenta.train(TINY, Unnamed(), run_dir=run)
    shown = capsys.readouterr().err
    assert f"fragmenta.load({str(run)!r}, env=...)" in shown
    assert not [name for name in ("eval", "play", "resume") if f"fragmenta {name}" in shown]
    assert main(["report", str(run)]) == 0
    page = (run / "report.html").read_text()
    assert "env=...)" in page
    assert "fragmenta resume" not in page


def test_a_terminal_sees_it_live(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    fragmenta.train(TINY, "CartPole-v1")
    assert "100%" in terminal.getvalue()
    assert "\x1b[" in terminal.getvalue(), "it moves the cursor"


class FakeNotebook:
    """As much of IPython as a kernel has: keeps what the output shows, one entry per update."""

    def __init__(self) -> None:
        self.kernel, self.shown = object(), []

    def display(self, html: Any, display_id: bool) -> "FakeNotebook":
        assert display_id
        return self

    def update(self, html: str) -> None:
        self.shown.append(html)


def test_a_notebook_sees_a_curve_that_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = FakeNotebook()
    ipython, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    ipython.get_ipython = lambda: notebook  # pyright: ignore[reportAttributeAccessIssue]
    display.HTML, display.display = str, notebook.display  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr("fragmenta.progress.notebook.EVERY", 0.0)
    fragmenta.train(TINY, "CartPole-v1")
    assert "compiling ..." in notebook.shown[0]
    lengths = [html.partition("</svg>")[0].count(",") for html in notebook.shown if "<svg" in html]
    assert lengths == sorted(lengths)
    assert lengths[-1] > lengths[0]
    assert "1,280 steps at" in notebook.shown[-1]


@pytest.mark.full
def test_a_real_notebook_shows_the_run_and_its_result(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    cell = (
        "import fragmenta\n"
        "result = fragmenta.train('ppo', 'CartPole-v1', num_envs=4, horizon=32, minibatches=2, total_steps=1280)"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in (cell, "result")])
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    running, result = (cell["outputs"][-1]["data"] for cell in notebook.cells)
    assert "<svg" in running["text/html"]
    assert "1,280 steps at" in running["text/html"]
    assert result["text/plain"].startswith("Result of ppo on CartPole-v1 under fused: return ")
    assert "<svg" in result["text/html"]


def test_a_result_and_a_run_show_themselves(tmp_path: Path) -> None:
    result = fragmenta.train(TINY, "CartPole-v1", run_dir=tmp_path / "run")
    run = fragmenta.load(tmp_path / "run")
    line = f"ppo on CartPole-v1 under fused: return {result.summary['return_mean']:.1f} over the latest episodes, 1,280"
    assert repr(result).startswith(f"Result of {line} steps at ")
    assert repr(run).startswith(f"Run '{tmp_path / 'run'}' of {line} steps at ")
    for shown in (result._repr_html_(), run._repr_html_()):
        assert "CartPole-v1" in shown
        assert shown.partition("<polyline")[2].partition("/>")[0].count(",") > 5
    (tmp_path / "run" / "summary.json").unlink()
    assert repr(run).endswith("ppo on CartPole-v1 under fused: not finished, 1,280 steps so far")


def test_a_plan_and_a_graph_show_themselves() -> None:
    graph = fragmenta.trace("ppo", "CartPole-v1")
    plan = fragmenta.project(graph, "single_learner_fine", Cluster(("cpu:0", "cpu:1")))
    assert repr(graph).startswith("graph of act, step, learn")
    assert repr(plan).startswith("distribution policy single_learner_fine: ")
    assert "<pre" in graph._repr_html_()
    drawing = plan._repr_html_().partition("</svg>")[0] + "</svg>"
    texts = [element.text for element in ElementTree.fromstring(drawing).iter("text")]
    assert {"env", "learner"} <= set(texts)
