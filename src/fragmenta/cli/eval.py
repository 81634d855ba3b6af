"""`fragmenta eval`: how good the policy of a run is."""

import dataclasses
import json as json_format
import time

from fragmenta.cli.arguments import read_options
from fragmenta.engines.hardware import keep_compiled_programs
from fragmenta.errors import ConfigError
from fragmenta.evaluation.evaluate import Evaluation, evaluate
from fragmenta.runs.opening import open_run
from fragmenta.runs.run_directory import sha256


@dataclasses.dataclass(frozen=True)
class EvalOptions:
    """How to evaluate."""

    episodes: int = 100
    """Episodes to play, each in an environment of its own."""
    seed: int = 0
    """The same seed gives the same episodes."""
    max_steps: int | None = None
    """Cut episodes off after so many steps. By default where the environment does, and at the latest after 100,000."""
    json: bool = False
    """Print the two results as JSON and nothing else."""


def run(arguments: list[str]) -> int:
    """Play with the likeliest actions and with drawn ones, print both, and add them to the run's evaluations.jsonl."""
    path, options = read_options("eval", "RUN", EvalOptions, arguments)
    keep_compiled_programs()
    opened = open_run(path)
    params = opened.params()
    fingerprint = sha256(params)
    if not options.json:
        print(f"{opened.config['algorithm']} on {opened.env_name}, {options.episodes} episodes, seed {options.seed}")
    records = []
    for deterministic in (True, False):
        started = time.monotonic()
        found = evaluate(
            opened.algorithm, opened.env, params, options.episodes, options.seed, deterministic, options.max_steps
        )
        seconds = round(time.monotonic() - started, 3)
        records.append({"steps": opened.steps(), **found.as_record(), "params_sha256": fingerprint, "seconds": seconds})
        if not options.json:
            print(_line(found), flush=True)
    try:
        with open(opened.path / "evaluations.jsonl", "a") as file:
            file.writelines(json_format.dumps(record) + "\n" for record in records)
    except OSError as error:
        raise ConfigError(f"cannot add to the run's evaluations.jsonl: {error.strerror}") from None
    if options.json:
        print(json_format.dumps(records))
    return 0


def _line(found: Evaluation) -> str:
    low, high = found.interval
    lengths = f"length {found.lengths.mean():,.1f} ({found.lengths.min():,} to {found.lengths.max():,})"
    cut = f", {found.unfinished} cut off before their end" if found.unfinished else ""
    return (
        f"  {'deterministic' if found.deterministic else 'stochastic':<14} return {found.mean:10.2f}  "
        f"95% {low:.2f} to {high:.2f}  deviation {found.std:.2f}  {lengths}{cut}"
    )
