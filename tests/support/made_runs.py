"""Synthetic run directories in the format of `train`, for tests of figures and reports."""

import json
from pathlib import Path
from typing import Any

GRAPH = """flowchart LR
  actor["actor x2<br/>act, step<br/>cpu:1, cpu:2"]
  learner["learner<br/>learn<br/>cpu:0"]
  learner -- "Broadcast: params.bias_0, params.kernel_0<br/>36.9 KB per iteration" --> actor
  actor -- "Gather: observation, action, +3<br/>377 KB per iteration, x128" --> learner
"""


def made_run(
    path: Path, seed: int = 0, iterations: int = 40, slope: float = 5.0, finished: bool = True, **config: Any
) -> Path:
    """A run whose return is its seed plus `slope` per iteration, with 100 steps and 20 episodes per iteration."""
    path.mkdir(parents=True)
    learning_rate = config.pop("learning_rate", 0.001)
    records = [
        {
            "iteration": i,
            "steps": 100 * (i + 1),
            "seconds": 0.1 * (i + 1),
            "entropy": 0.7 - 0.01 * i,
            "value_loss": 30.0 / (i + 1),
            "episodes": 20,
            "return_mean": slope * i + seed,
            "length_mean": 10.0,
        }
        for i in range(iterations)
    ]
    identity = {"algorithm": "ppo", "env": "CartPole-v1", "policy": "fused", "engine": "local", "replicas": 1}
    settings = {"merge": True, "devices": ["cpu:0"], "version": "0.1.0"}
    hyper_parameters = {"num_envs": 4, "total_steps": 4000, "learning_rate": learning_rate, "hidden": [8, 8]}
    whole = {**identity, "seed": seed, **settings, **config, "hyper_parameters": hyper_parameters}
    (path / "config.json").write_text(json.dumps(whole))
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (path / "graph.mmd").write_text(GRAPH)
    if finished:
        summary = {"steps_per_second": 1000.0, "compile_seconds": 1.5, "wall_seconds": 130.0}
        (path / "summary.json").write_text(json.dumps(summary))
    return path


def add_evaluations(path: Path) -> None:
    """Three evaluations, the last line truncated."""
    evaluations = [
        {"iteration": i, "steps": 100 * (i + 1), "seconds": 0.1 * i, "episodes": 20, "deterministic": True,
         "return_mean": 5.0 * i, "return_std": 2.0, "return_low": 5.0 * i - 4, "return_high": 5.0 * i + 4,
         "length_mean": 5.0 * i}
        for i in (9, 19)
    ]  # fmt: skip
    (path / "evaluations.jsonl").write_text(
        "".join(json.dumps(e) + "\n" for e in evaluations) + '{"iteration": 29, "st'
    )
