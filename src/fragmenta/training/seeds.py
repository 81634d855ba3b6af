"""Train several seeds as one compiled program: the loop of an algorithm, vmapped over keys."""

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from fragmenta.algorithms import Algorithm
from fragmenta.envs import Environment
from fragmenta.errors import ConfigError
from fragmenta.policies import Policy, resolve
from fragmenta.policies.fused import fused
from fragmenta.runs.episode_statistics import Tally
from fragmenta.runs.metrics import JsonLines
from fragmenta.runs.run_directory import RunDirectory, sha256
from fragmenta.tracing.iteration import iteration


@dataclasses.dataclass(frozen=True)
class Seeds(Algorithm):
    """Trains another algorithm once per seed; the seed is the leading dimension of its state and metrics."""

    inner: Algorithm = dataclasses.field(kw_only=True)
    seeds: tuple[int, ...] = dataclasses.field(kw_only=True)

    @property
    def steps_per_iteration(self) -> int | None:
        """Environment steps per seed, where the program does not tell."""
        return self.inner.steps_per_iteration

    def init(self, env: Environment, key: jax.Array) -> Any:
        """The initial state of every seed, as if it were trained alone; the key is not used."""
        # Tracing the loop for a replica changes num_envs.
        inner = dataclasses.replace(self.inner, num_envs=self.num_envs)
        # Not vmap: batched QR decompositions, as of orthogonal weights, can wait forever for each other on few cores.
        return jax.lax.map(lambda key: inner.init(env, key), jnp.stack([jax.random.key(seed) for seed in self.seeds]))

    def iterate(self, env: Environment, state: Any) -> tuple[Any, dict[str, jax.Array]]:
        """One iteration of every seed."""
        return jax.vmap(iteration(self.inner, env))(state)

    def params(self, state: Any) -> Any:
        """The parameters of all seeds."""
        return jax.vmap(self.inner.params)(state)


def many_seeds(algorithm: Algorithm, policy: str | Policy, first: int, count: int) -> Seeds:
    """The algorithm for the seeds `first`, `first + 1` and so on; ConfigError if the policy would split it."""
    if count < 1:
        raise ConfigError(f"seeds is {count}: it must be at least 1")
    if resolve(policy) is not fused:
        name = policy if isinstance(policy, str) else policy.__name__
        raise ConfigError(
            f"{count} seeds are trained as one program, but policy '{name}' splits it: use fused, or start {count} runs"
        )
    seeds = tuple(range(first, first + count))
    return Seeds(algorithm.num_envs, algorithm.total_steps, inner=algorithm, seeds=seeds)


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
        {"seed": seed, "return_mean": seed_tally.return_mean, "params_sha256": sha256(_of_seed(params, i))}
        for i, (seed, seed_tally) in enumerate(zip(algorithm.seeds, tally.each, strict=True))
    ]


def write_seeds(
    run: Path, config: dict[str, Any], records: Sequence[dict[str, Any]], params: Any, summary: dict[str, Any]
) -> None:
    """Write every seed's configuration, metrics, parameters and summary to `seed-SEED`, as a single run would."""
    shared = {name: value for name, value in summary.items() if name != "per_seed"}
    shared["steps_per_second"] = round(summary["steps_per_second"] / len(summary["per_seed"]), 1)
    for i, seed_summary in enumerate(summary["per_seed"]):
        shutil.rmtree(run / f"seed-{seed_summary['seed']}", ignore_errors=True)  # from before the run was resumed
        directory = RunDirectory.new(run / f"seed-{seed_summary['seed']}")
        directory.write_json("config.json", {**config, "seed": seed_summary["seed"], "seeds": 1})
        lines = JsonLines(directory.path / "metrics.jsonl")
        lines.write([_record_of_seed(record, i) for record in records])
        lines.close()
        directory.write_params(_of_seed(params, i))
        directory.write_json("summary.json", {**shared, **seed_summary})


def _of_seed(tree: Any, index: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], tree)


def _record_of_seed(record: dict[str, Any], index: int) -> dict[str, Any]:
    progress = {name: record[name] for name in ("iteration", "steps", "seconds")}
    return progress | {name: values[index] for name, values in record["per_seed"].items()}


def _mean(values: list[Any]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None
