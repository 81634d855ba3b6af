"""Train several seeds as one compiled program: whether that is possible, their statistics, and their files."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fragmenta.envs import Environment
from fragmenta.errors import ConfigError
from fragmenta.policies import Policy, resolve
from fragmenta.policies.fused import fused
from fragmenta.runs.episode_statistics import Tally
from fragmenta.runs.metrics import JsonLines
from fragmenta.runs.run_directory import EVALUATIONS, RunDirectory, read_records, sha256
from fragmenta.runs.seeds import Seeds, of_seed, record_of_seed


def check_seeds(policy: str | Policy, count: int, env: Environment) -> None:
    """Raise ConfigError if there are no seeds, or if the program of several would be split."""
    if count < 1:
        raise ConfigError(f"seeds is {count}: it must be at least 1")
    if count > 1 and env.host_pool:
        raise ConfigError(
            f"{count} seeds are trained as one program, but {env.title} is stepped on the host: start {count} runs"
        )
    if count > 1 and resolve(policy) is not fused:
        name = policy if isinstance(policy, str) else policy.__name__
        raise ConfigError(
            f"{count} seeds are trained as one program, but distribution policy '{name}' splits it: use fused, or "
            f"start {count} runs"
        )


class SeedTally:
    """Episode statistics of several seeds: their means, and the values of each seed."""

    def __init__(self, count: int) -> None:
        self.each = [Tally() for _ in range(count)]

    def add(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """A record of one iteration: every metric's mean over the seeds, and its values under `per_seed`."""
        records = [tally.add({name: value[i] for name, value in metrics.items()}) for i, tally in enumerate(self.each)]
        per_seed = {name: [record[name] for record in records] for name in records[0]}
        return {name: _mean(values) for name, values in per_seed.items()} | {"per_seed": per_seed}

    def recall(self, record: dict[str, Any]) -> None:
        """Count an earlier iteration from its record."""
        for i, tally in enumerate(self.each):
            tally.recall({name: values[i] for name, values in record["per_seed"].items()})

    @property
    def return_mean(self) -> float | None:
        """Mean over the seeds of the mean return of their latest episodes."""
        return _mean([tally.return_mean for tally in self.each])

    @property
    def has_enough_episodes(self) -> bool:
        """Whether the mean of every seed covers as many episodes as it should."""
        return all(tally.has_enough_episodes for tally in self.each)


def seed_summaries(algorithm: Seeds, params: Any, tally: SeedTally) -> list[dict[str, Any]]:
    """Return and parameter checksum of each seed."""
    return [
        {"seed": seed, "return_mean": seed_tally.return_mean, "params_sha256": sha256(of_seed(params, i))}
        for i, (seed, seed_tally) in enumerate(zip(algorithm.seeds, tally.each, strict=True))
    ]


def write_seeds(
    run: Path, config: dict[str, Any], records: Sequence[dict[str, Any]], params: Any, summary: dict[str, Any]
) -> None:
    """Write every seed's configuration, metrics, evaluations, parameters and summary to `seed-SEED`, as a single run
    would."""
    file = run / EVALUATIONS
    evaluations = [record for record in read_records(file) if "per_seed" in record] if file.exists() else []
    shared = {name: value for name, value in summary.items() if name != "per_seed"}
    shared["steps_per_second"] = round(summary["steps_per_second"] / len(summary["per_seed"]), 1)
    for i, seed_summary in enumerate(summary["per_seed"]):
        shutil.rmtree(run / f"seed-{seed_summary['seed']}", ignore_errors=True)  # from before the run was resumed
        directory = RunDirectory.new(run / f"seed-{seed_summary['seed']}")
        directory.write_json("config.json", {**config, "seed": seed_summary["seed"], "seeds": 1})
        _write_records(directory.path / "metrics.jsonl", [record_of_seed(record, i) for record in records])
        if evaluations:
            of_this = [record_of_seed(evaluation, i) for evaluation in evaluations]
            _write_records(directory.path / EVALUATIONS, of_this)
        directory.write_params(of_seed(params, i))
        directory.write_json("summary.json", {**shared, **seed_summary})


def _write_records(path: Path, records: Sequence[dict[str, Any]]) -> None:
    lines = JsonLines(path)
    lines.write(records)
    lines.close()


def _mean(values: list[Any]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None
