"""`fragmenta eval`: evaluate the policy of a run."""

import dataclasses
import json as json_format
import time

from fragmenta.cli.arguments import read_options
from fragmenta.engines.hardware import keep_compiled_programs
from fragmenta.errors import ConfigError
from fragmenta.evaluation.evaluate import Evaluation
from fragmenta.evaluation.over_seeds import SeedEvaluations, evaluate_trained
from fragmenta.runs.opening import load
from fragmenta.runs.run_directory import EVALUATIONS, sha256


@dataclasses.dataclass(frozen=True)
class EvalOptions:
    """How to evaluate."""

    episodes: int = 100
    """Episodes to play, each in its own environment."""
    seed: int = 0
    """The same seed gives the same episodes."""
    max_steps: int | None = None
    """Truncate episodes after this many steps. Default: the environment's own limit, at most 100,000."""
    checkpoint: str | None = None
    """The checkpoint to take the parameters from: best, last or an iteration. Default: those at the end of the run."""
    json: bool = False
    """Print the two results as JSON and nothing else."""


def run(arguments: list[str]) -> int:
    """Evaluate with the most likely and with sampled actions, print both, and append to the run's evaluations.jsonl."""
    path, options = read_options("eval", "RUN", EvalOptions, arguments)
    keep_compiled_programs()
    opened = load(path, checkpoint=options.checkpoint)
    params = opened.params()
    fingerprint = sha256(params)
    if not options.json:
        print(f"{opened.config['algorithm']} on {opened.env_name}, {options.episodes} episodes, seed {options.seed}")
    records = []
    for deterministic in (True, False):
        started = time.monotonic()
        evaluation = evaluate_trained(
            opened.trained, opened.env, params, options.episodes, options.seed, deterministic, options.max_steps
        )
        seconds = round(time.monotonic() - started, 3)
        records.append(
            {"steps": opened.steps(), **evaluation.as_record(), "params_sha256": fingerprint, "seconds": seconds}
        )
        if not options.json:
            print(_lines(evaluation), flush=True)
    try:
        with open(opened.path / EVALUATIONS, "a") as file:
            file.writelines(json_format.dumps(record) + "\n" for record in records)
    except OSError as error:
        raise ConfigError(f"cannot write to the run's evaluations.jsonl: {error.strerror}") from None
    if options.json:
        print(json_format.dumps(records))
    return 0


def _lines(evaluation: Evaluation | SeedEvaluations) -> str:
    """A line per seed, and below those of several seeds their mean and range."""
    if isinstance(evaluation, Evaluation):
        return _line(evaluation)
    lines = [f"{_line(each)}  (seed {seed})" for seed, each in zip(evaluation.seeds, evaluation.each, strict=True)]
    low, high = evaluation.interval
    count = f"{len(evaluation.seeds)} seeds"
    return "\n".join([*lines, f"  {count:<14} return {evaluation.mean:10.2f}  from {low:.2f} to {high:.2f}"])


def _line(evaluation: Evaluation) -> str:
    low, high = evaluation.interval
    lengths = f"length {evaluation.lengths.mean():,.1f} ({evaluation.lengths.min():,} to {evaluation.lengths.max():,})"
    cut = f", {evaluation.unfinished} truncated at the step limit" if evaluation.unfinished else ""
    return (
        f"  {'deterministic' if evaluation.deterministic else 'stochastic':<14} return {evaluation.mean:10.2f}  "
        f"95% {low:.2f} to {high:.2f}  std {evaluation.std:.2f}  {lengths}{cut}"
    )
