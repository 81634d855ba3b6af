"""Stand-ins for wandb and mlflow, which are not installed for tests: modules that write down how they are called.

Like wandb with WANDB_MODE=offline, they keep all in the run directory and need no network.
"""

import json
import sys
from pathlib import Path
from typing import Any

WANDB = """
import json, os, threading

class Run:
    def __init__(self, folder):
        self.folder = folder
        self.note("init", {})
    def note(self, call, arguments):
        with open(os.path.join(self.folder, "calls.jsonl"), "a") as file:
            file.write(json.dumps([call, arguments, threading.current_thread().name]) + "\\n")
    def log(self, data, step=None):
        FAULT
        self.note("log", {"data": data, "step": step})
    def finish(self):
        self.note("finish", {})

def init(project=None, name=None, dir=None, config=None):
    json.dumps(config, default=str)
    return Run(dir)
"""
MLFLOW = """
calls = []
def set_experiment(name): calls.append(("set_experiment", name))
def start_run(run_name=None): calls.append(("start_run", run_name))
def log_params(params): calls.append(("log_params", params))
def log_metrics(metrics, step=None): calls.append(("log_metrics", metrics, step))
def end_run(): calls.append(("end_run",))
"""


def install(folder: Path, monkeypatch: Any, fault: str = "pass") -> None:
    """Put the stand-ins where Python finds them; `fault` is what wandb does with every point first."""
    folder.mkdir()
    (folder / "wandb.py").write_text(WANDB.replace("FAULT", fault))
    (folder / "mlflow.py").write_text(MLFLOW)
    for name in ("wandb", "mlflow"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(folder))


def wandb_calls(run: Path) -> list[Any]:
    """What wandb was asked to do."""
    return [json.loads(line) for line in (run / "calls.jsonl").read_text().splitlines()]
