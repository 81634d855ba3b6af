"""Start a run from the parameters of another one."""

import dataclasses
from pathlib import Path
from typing import Any

import jax

from fragmenta.algorithms import Algorithm
from fragmenta.envs import Environment
from fragmenta.runs.opening import Run, load, params_of
from fragmenta.runs.run_directory import named_arrays, sha256
from fragmenta.runs.state import from_arrays


@dataclasses.dataclass(frozen=True)
class ParentRun:
    """The run whose parameters another one starts from."""

    description: dict[str, Any]
    """Its directory, the checkpoint, its steps and the fingerprint of the parameters, for config.json and history."""
    params: Any = None
    """None once the run that started from them has checkpoints of its own."""

    def __str__(self) -> str:
        return f"starts from the parameters of '{self.description['run']}' after {self.description['steps']:,} steps"


def origin_of(source: str | Path | Run, algorithm: Algorithm, env: Environment) -> ParentRun:
    """The parameters of a run for an algorithm on an environment; ConfigError if names, shapes or types differ."""
    run = source if isinstance(source, Run) else load(source)
    run.check_one_seed()
    params = from_arrays(params_of(algorithm, env), named_arrays(run.params()), f"run '{run.path}'")
    key = jax.random.key(0)
    jax.eval_shape(lambda params: algorithm.with_params(algorithm.init(env, key), params), params)
    description = {"run": str(run.path), "checkpoint": run.checkpoint, "steps": run.steps()}
    return ParentRun({**description, "params_sha256": sha256(params)}, params)
