"""The best trial of a sweep as an ordinary run directory, which eval, play, export and resume accept."""

import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fragmenta.graph.show import to_mermaid
from fragmenta.pictures.curve import draw_curve
from fragmenta.runs.checkpoints import CHECKPOINTS, Checkpoint, CheckpointFolder
from fragmenta.runs.episode_statistics import as_record
from fragmenta.runs.metrics import JsonLines
from fragmenta.runs.run_directory import RunDirectory, sha256
from fragmenta.runs.state import from_arrays
from fragmenta.search.group_training import Contender
from fragmenta.training.planning import Request, plan_run

BEST = "best"


def write_best(path: Path, request: Request, best: Contender) -> None:
    """Write the best seed of a trial to `path`, in place of an earlier best trial; `request` is for its algorithm."""
    run = plan_run(request)
    expected = jax.eval_shape(lambda key: request.algorithm.init(request.env, key), jax.random.key(0))
    optional = request.algorithm.rebuildable
    params = request.algorithm.params(from_arrays(expected, best.state, "the trial", optional))
    temporary = path.with_name(f".{path.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    directory = RunDirectory.new(temporary)
    directory.write_json("config.json", run.config())
    directory.write_text("graph.mmd", to_mermaid(run.plan))
    records = _records(best, run.steps_per_iteration)
    lines = JsonLines(directory.path / "metrics.jsonl")
    lines.write(records)
    lines.close()
    directory.write_params(params)
    checkpoint = Checkpoint(best.state, len(records), records[-1]["steps"], best.trial.return_mean)
    CheckpointFolder(directory.path / CHECKPOINTS).save(checkpoint)
    summary = {
        **run.identity(),
        "total_steps": records[-1]["steps"],
        "iterations": len(records),
        "steps_per_second": round(records[-1]["steps"] / max(records[-1]["seconds"], 1e-9), 1),
        "return_mean": best.return_mean,
        "params_sha256": sha256(params),
        "trial": best.trial.number,
        "values": best.trial.values,
    }
    directory.write_json("summary.json", summary)
    draw_curve(directory.path)
    replace_folder(temporary, path)


def replace_folder(new: Path, path: Path) -> None:
    """Put a folder in the place of another, if there is one."""
    shutil.rmtree(path, ignore_errors=True)
    new.rename(path)


def _records(best: Contender, steps_per_iteration: int) -> list[dict[str, Any]]:
    def at(i: int) -> dict[str, Any]:
        return as_record({name: np.asarray(values[i]) for name, values in best.metrics.items()})

    return [
        {"iteration": i, "steps": (i + 1) * steps_per_iteration, "seconds": round(float(seconds), 6), **at(i)}
        for i, seconds in enumerate(best.seconds)
    ]
