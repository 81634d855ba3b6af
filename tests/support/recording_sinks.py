"""Fake wandb and mlflow modules that record their calls; the real ones are not installed for tests.

Like wandb with WANDB_MODE=offline, they write everything to the run directory and need no network.
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
    def note(self, call, arguments):
        with open(os.path.join(self.folder, "calls.jsonl"), "a") as file:
            file.write(json.dumps([call, arguments, threading.current_thread().name]) + "\\n")
    def define_metric(self, name, step_metric=None):
        self.note("define_metric", {"name": name, "step_metric": step_metric})
    def log(self, data):
        FAULT
        self.note("log", data)
    def finish(self):
        self.note("finish", {})

def Video(path):
    return {"video": path, "bytes": os.path.getsize(path)}

def init(project=None, name=None, tags=None, dir=None, config=None):
    json.dumps(config, default=str)
    run = Run(dir)
    run.note("init", {"project": project, "name": name, "tags": tags})
    return run
"""
MLFLOW = """
calls = []
def set_experiment(name): calls.append(("set_experiment", name))
def start_run(run_name=None, tags=None): calls.append(("start_run", run_name, tags))
def log_artifact(path, folder): calls.append(("log_artifact", path, folder))
def log_params(params): calls.append(("log_params", params))
def log_metrics(metrics, step=None): calls.append(("log_metrics", metrics, step))
def end_run(): calls.append(("end_run",))
"""


def install(folder: Path, monkeypatch: Any, fault: str = "pass") -> None:
    """Put the fakes on the import path; `fault` is a statement that the fake wandb runs before it logs a point."""
    folder.mkdir()
    (folder / "wandb.py").write_text(WANDB.replace("FAULT", fault))
    (folder / "mlflow.py").write_text(MLFLOW)
    for name in ("wandb", "mlflow"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(folder))


def wandb_calls(run: Path) -> list[Any]:
    """The recorded calls of wandb."""
    return [json.loads(line) for line in (run / "calls.jsonl").read_text().splitlines()]
