"""Train a recipe, and check what it reached."""

import dataclasses
from pathlib import Path

from fragmenta.envs import make
from fragmenta.runs.episode_statistics import WINDOW
from fragmenta.training.train import Result, train
from fragmenta.zoo.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class RecipeCheck:
    """What the seeds of a recipe reached: the mean return of the latest 100 episodes of training."""

    recipe: Recipe
    steps: int
    """Environment steps of every seed."""
    returns: tuple[float | None, ...]
    """One per seed; None if no episode ended."""
    episodes: tuple[int, ...]
    """How many episodes ended, one number per seed."""

    @property
    def verdict(self) -> str:
        """Whether every seed reached what the recipe expects, in as many episodes as count."""
        if any(value is None or value < self.recipe.expected for value in self.returns):
            return "below"
        return "ok" if min(self.episodes) >= WINDOW else f"too few episodes: {min(self.episodes)} of {WINDOW}"

    @property
    def is_ok(self) -> bool:
        """Whether the recipe passed."""
        return self.verdict == "ok"

    @property
    def reached(self) -> str:
        """The returns as text."""
        return ", ".join("no episode" if value is None else self._text(value) for value in self.returns)

    def __str__(self) -> str:
        return f"reached {self.reached}, expected {self._text(self.recipe.expected)}: {self.verdict}"

    def _text(self, value: float) -> str:
        return f"{value:,.2f}" if abs(self.recipe.expected) < 10 else f"{value:,.1f}"


def train_recipe(
    recipe: Recipe,
    seed: int = 0,
    seeds: int = 1,
    total_steps: int | None = None,
    run_dir: str | Path | None = None,
    progress: bool = True,
) -> RecipeCheck:
    """Train a recipe with one or several seeds, and check what it reached. Seeds are trained as one program, or one
    after another if the environment is stepped on the host; each then has a subdirectory of its own."""
    algorithm = recipe.make_algorithm(total_steps)
    if seeds > 1 and make(recipe.env).host_pool:
        each = range(seed, seed + seeds)
        folders = [Path(run_dir) / f"seed-{one}" if run_dir else None for one in each]
        results = [
            train(algorithm, recipe.env, seed=one, run_dir=folder, progress=progress)
            for one, folder in zip(each, folders, strict=True)
        ]
    else:
        results = [train(algorithm, recipe.env, seed=seed, seeds=seeds, run_dir=run_dir, progress=progress)]
    returns, episodes = zip(*(each for result in results for each in _of_seeds(result)), strict=True)
    return RecipeCheck(recipe, results[0].summary["total_steps"], returns, episodes)


def _of_seeds(result: Result) -> list[tuple[float | None, int]]:
    """The mean return of the latest episodes, and how many there were, of every seed of a run."""
    each = [record.get("per_seed", {"episodes": [record["episodes"]]})["episodes"] for record in result.metrics]
    summaries = result.summary.get("per_seed", [result.summary])
    return [(summary["return_mean"], sum(counts[i] for counts in each)) for i, summary in enumerate(summaries)]
