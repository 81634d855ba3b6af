"""Train a recipe, and check what it reached."""

import dataclasses
from pathlib import Path

from fragmenta.envs import make
from fragmenta.training.train import train
from fragmenta.zoo.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class RecipeCheck:
    """What the seeds of a recipe reached: the mean return of the latest 100 episodes of training."""

    recipe: Recipe
    returns: tuple[float | None, ...]
    """One per seed; None if no episode ended."""

    @property
    def is_ok(self) -> bool:
        """Whether every seed reached what the recipe expects."""
        return all(value is not None and value >= self.recipe.expected for value in self.returns)

    @property
    def reached(self) -> str:
        """The returns as text."""
        return ", ".join("no episode" if value is None else self._text(value) for value in self.returns)

    def __str__(self) -> str:
        verdict = "ok" if self.is_ok else "below"
        return f"reached {self.reached}, expected {self._text(self.recipe.expected)}: {verdict}"

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
        return RecipeCheck(recipe, tuple(result.summary["return_mean"] for result in results))
    result = train(algorithm, recipe.env, seed=seed, seeds=seeds, run_dir=run_dir, progress=progress)
    by_seed = result.summary["per_seed"] if seeds > 1 else [result.summary]
    return RecipeCheck(recipe, tuple(summary["return_mean"] for summary in by_seed))
