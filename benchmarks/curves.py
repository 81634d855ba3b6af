"""Learning curves of the recipes of the zoo, beside what others published, in docs/algorithms.md.

    python benchmarks/curves.py NAME... [--seeds 3] [--steps 1000000]   train these, and keep their curves
    python benchmarks/curves.py                                         draw the pictures, write the tables

Of every seed, the mean return of the latest episodes against steps is kept in `docs/curves/NAME.json`: of 100, or of 16
if there are few in all. What was reached is the mean of the latest 100, as in the zoo.
"""

import argparse
import dataclasses
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

import fragmenta
from fragmenta.drawing.colours import COLOURS, INK, MUTED
from fragmenta.pictures.style import dress, new_figure, save, short
from fragmenta.runs.episode_statistics import WINDOW
from fragmenta.zoo import RECIPES, Recipe

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOCS = Path(__file__).parents[1] / "docs"
KEPT, PAGE = DOCS / "curves", DOCS / "algorithms.md"
POINTS = 100
"""How many points of a curve are kept."""
FEW = 16
"""Episodes that a point is the mean of, if there are less than 500 in all."""
HOST = ("gymnasium:", "ale:")
"""Environments whose seeds are trained one after another."""
HEAD = "| command | seeds 0 to 2 | others |\n|---|---|---|\n"
TABLE = re.compile(r"(<!-- curves: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

WORSE = (
    Recipe(
        "dqn-double-cartpole", "dqn", "CartPole-v1", 500_000, 0.0, RECIPES["dqn-cartpole"].reference, (), {"n_step": 1}
    ),
    Recipe("dqn-memory", "dqn", "gymnax:MemoryChain-bsuite", 150_000, -1.0, RECIPES["r2d2-memory"].reference),
)
"""What is no recipe: double Q-learning alone, and a task that needs a memory without one."""
CURVES = RECIPES | {recipe.name: recipe for recipe in WORSE}


@dataclasses.dataclass(frozen=True)
class Panel:
    """Curves of one environment, side by side with other panels of a picture."""

    title: str
    suffix: str
    """The last part of the names of its recipes."""
    names: str
    """Their first parts."""
    lowest: float | None = None
    """Where the axis of returns begins, if untrained policies are far below what is learned."""

    @property
    def recipes(self) -> list[Recipe]:
        """Those whose curves are kept."""
        named = [CURVES[f"{name}-{self.suffix}"] for name in self.names.split()]
        return [recipe for recipe in named if (KEPT / f"{recipe.name}.json").exists()]


CARTPOLE = "CartPole-v1"
GROUPS = {
    "cartpole": (
        Panel(f"{CARTPOLE}, on policy", "cartpole", "ppo ppo-gru a2c impala reinforce pqn"),
        Panel(f"{CARTPOLE}, off policy", "cartpole", "dqn sac-discrete"),
    ),
    "dqn": (
        Panel(f"{CARTPOLE}, one switch", "cartpole", "dqn-original dqn-double dqn-n-step dqn-dueling"),
        Panel(
            f"{CARTPOLE}, one switch",
            "cartpole",
            "dqn-prioritized dqn-c51 dqn-quantile dqn-noisy dqn-rainbow",
        ),
    ),
    "classic": (
        Panel("Acrobot-v1", "acrobot", "ppo dqn"),
        Panel("MountainCar-v0", "mountaincar", "ppo"),
    ),
    "continuous": (
        Panel("Pendulum-v1, off policy", "pendulum", "sac td3 ddpg"),
        Panel("Pendulum-v1, on policy", "pendulum", "ppo"),
        Panel("HalfCheetah-v5", "halfcheetah", "sac td3 ddpg"),
    ),
    "memory": (
        Panel("MemoryChain", "memory", "r2d2 ppo-gru ppo-lstm ppo-transformer dqn"),
        Panel("ProbeMask", "masks", "ppo dqn"),
    ),
    "minatar": (Panel("MinAtar Breakout", "minatar-breakout", "dqn pqn"),),
    "teams": (Panel("simple_spread", "spread", "mappo ippo vdn qmix maddpg", lowest=-30.0),),
}


def train(recipe: Recipe, seeds: int, steps: int) -> list[list[dict[str, Any]]]:
    """The records of every iteration, of each seed."""
    algorithm = recipe.make_algorithm(steps)
    if seeds == 1 or recipe.env.startswith(HOST):
        each = [fragmenta.train(algorithm, recipe.env, seed=seed, progress=False) for seed in range(seeds)]
        return [list(result.metrics) for result in each]
    records = fragmenta.train(algorithm, recipe.env, seeds=seeds, progress=False).metrics
    return [
        [{"steps": r["steps"], **{k: v[i] for k, v in r["per_seed"].items()}} for r in records] for i in range(seeds)
    ]


def curve(records: Sequence[dict[str, Any]], episodes: int) -> list[float | None]:
    """The mean return of the latest episodes, at least so many, at `POINTS` places; None before there are any."""
    counts = [record.get("episodes") or 0 for record in records]
    returns = [count and count * record["return_mean"] for count, record in zip(counts, records, strict=True)]
    means = []
    for place in places(len(records)):
        first, count = place, counts[place]
        while count < episodes and first:
            first -= 1
            count += counts[first]
        means.append(float(f"{sum(returns[first : place + 1]) / count:.4g}") if count else None)
    return means


def places(count: int) -> list[int]:
    """Indices at equal distances, the last of them the last."""
    kept = min(POINTS, count)
    return [(i + 1) * count // kept - 1 for i in range(kept)]


def keep(recipe: Recipe, seeds: int, steps: int) -> None:
    """Train a recipe and write its curve."""
    began, each = time.monotonic(), train(recipe, seeds, steps)
    few = sum(record.get("episodes") or 0 for record in each[0]) < 5 * WINDOW
    kept: dict[str, Any] = {
        "steps": [each[0][i]["steps"] for i in places(len(each[0]))],
        "episodes": FEW if few else WINDOW,
        "reached": [curve(records, WINDOW)[-1] for records in each],
        "returns": [curve(records, FEW if few else WINDOW) for records in each],
    }
    KEPT.mkdir(exist_ok=True)
    (KEPT / f"{recipe.name}.json").write_text(json.dumps(kept, separators=(",", ":")) + "\n")
    last = ", ".join(f"{value:,g}" for value in kept["reached"])
    print(f"{recipe.name}, {kept['steps'][-1]:,} steps in {time.monotonic() - began:.0f} s: {last}", flush=True)


def read(recipe: Recipe) -> dict[str, Any]:
    """The curve of a recipe."""
    return json.loads((KEPT / f"{recipe.name}.json").read_text())


def draw(group: str) -> None:
    """The picture of a group, a panel per environment."""
    panels = [panel for panel in GROUPS[group] if panel.recipes]
    figure = new_figure(5.2 * max(len(panels), 1.3), 4.6)
    for i, (axes, panel) in enumerate(zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True)):
        dress(axes, "environment steps", "" if i else "return")
        axes.set_title(panel.title, loc="left", fontsize=11, fontweight="bold", color=INK)
        axes.set_xlim(0, max(read(recipe)["steps"][-1] for recipe in panel.recipes))
        for recipe, colour in zip(panel.recipes, COLOURS, strict=False):
            _draw_curve(axes, recipe, colour)
        _draw_references(axes, panel.recipes)
        if panel.lowest is not None:
            axes.set_ylim(bottom=panel.lowest)
        where = {"loc": "upper left", "bbox_to_anchor": (-0.06, -0.16), "ncols": 2}
        axes.legend(frameon=False, fontsize=8, labelcolor=INK, **where)
    file = DOCS / "images" / f"curves_{group}.png"
    save(figure, file)
    Image.open(file).convert("RGB").quantize(64).save(file, optimize=True)


def _draw_curve(axes: "Axes", recipe: Recipe, colour: str) -> None:
    kept = read(recipe)
    rows = [[value for value in row if value is not None] for row in zip(*kept["returns"], strict=True)]
    points = [(steps, row) for steps, row in zip(kept["steps"], rows, strict=True) if row]
    steps = [steps for steps, _ in points]
    axes.plot(steps, [sum(row) / len(row) for _, row in points], color=colour, linewidth=1.8, label=label(recipe))
    low, high = [min(row) for _, row in points], [max(row) for _, row in points]
    axes.fill_between(steps, low, high, color=colour, alpha=0.16, linewidth=0)


def _draw_references(axes: "Axes", recipes: list[Recipe]) -> None:
    """A star where others were after as many steps as the picture has, otherwise a line; once each."""
    users: dict[tuple[str, float, int | None], list[str]] = {}
    for recipe, colour in zip(recipes, COLOURS, strict=False):
        reference = recipe.reference
        users.setdefault((reference.name, reference.figure, reference.steps), []).append(colour)
    end = axes.get_xlim()[1]
    for (name, figure, steps), colours in users.items():
        words = f"{name}: {figure:,g}{f' at {short(steps)}' if steps else ''}"
        style: dict[str, Any] = {"color": MUTED if len(colours) > 1 or not steps else colours[0], "label": words}
        if steps and steps <= 1.02 * end:
            star = {"markersize": 11, "markeredgecolor": "white", "linestyle": "none", "clip_on": False, "zorder": 5}
            axes.plot([min(steps, end)], [figure], "*", **style, **star)
        else:
            axes.axhline(figure, linewidth=1, linestyle=(0, (4, 3)), **style)


def label(recipe: Recipe) -> str:
    """The algorithm with its switches, as on the command line."""
    is_switch = recipe.name.startswith("dqn-") and recipe.env == CARTPOLE
    words = recipe.train_arguments()[3:-2] if is_switch else []
    return " ".join([recipe.algorithm, *words])


def table(group: str) -> str:
    """A row per recipe: its command, what each seed reached, and what others did."""
    rows = []
    for recipe in (recipe for panel in GROUPS[group] for recipe in panel.recipes):
        kept, reference = read(recipe), recipe.reference
        steps = kept["steps"][-1]
        named = recipe.steps if abs(steps - recipe.steps) < 0.02 * recipe.steps else round(steps, -3)
        seeds = [] if recipe.env.startswith(HOST) else ["--seeds", str(len(kept["reached"]))]
        command = " ".join(["fragmenta", *recipe.train_arguments(named), *seeds])
        reached = ", ".join(f"{value:,g}" for value in kept["reached"])
        others = f"[{reference.name}]({reference.url}): {reference.words}"
        if reference.steps and reference.steps < 0.9 * steps:
            earlier = next(i for i, at in enumerate(kept["steps"]) if at >= reference.steps)
            others += f"; ours then: {', '.join(f'{returns[earlier]:,g}' for returns in kept['returns'])}"
        rows.append(f"| `{command}` | {reached} | {others} |\n")
    return HEAD + "".join(rows)


def with_tables(page: str) -> str:
    """The page with the current tables in place of those that it has."""
    return TABLE.sub(lambda part: part[1] + table(part[2]) + part[3], page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a recipe of the zoo")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="instead of those of the recipe")
    options = parser.parse_args()
    for name in options.names:
        keep(CURVES[name], options.seeds, options.steps or CURVES[name].steps)
    if not options.names:
        for group in GROUPS:
            if any(panel.recipes for panel in GROUPS[group]):
                draw(group)
        PAGE.write_text(with_tables(PAGE.read_text()))


if __name__ == "__main__":
    main()
