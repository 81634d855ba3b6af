"""Tables and the chart of what `planner.py` measured."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from planner_grids import Configuration, is_apart


def parts(results: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The results of configurations that were tuned on, and of those that were kept apart; none that is empty."""
    tuned = [result for result in results if not is_apart(result["number"])]
    apart = [result for result in results if is_apart(result["number"])]
    return {title: part for title, part in (("tuned on", tuned), ("kept apart", apart)) if part}


def summary(results: list[dict[str, Any]]) -> str:
    """The figures of a part of the grid, as text."""
    errors = [abs(row["predicted"] / row["measured"] - 1) for result in results for row in result["rows"]]
    shares = [share_of_best(result) for result in results]
    return (
        f"{len(results)} configurations, {len(errors)} candidates: error of the prediction "
        f"{statistics.median(errors):.1%} (median), {percentile(errors, 0.9):.1%} (90th percentile); the chosen one at "
        f"least 0.95 of the best measured in {sum(share >= 0.95 for share in shares) / len(shares):.0%}, lowest "
        f"{min(shares):.2f}"
    )


def share_of_best(result: dict[str, Any]) -> float:
    """The measured speed of the chosen candidate, as a share of the best one."""
    rates = {row["what"]: row["measured"] for row in result["rows"]}
    return rates[result["chosen"]] / max(rates.values())


def percentile(values: list[float], share: float) -> float:
    """The value below which that share of them is."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def report(results: list[dict[str, Any]], grid: Sequence[Configuration]) -> None:
    """Print a table of all candidates, and the figures of both parts."""
    for result in results:
        name, env, settings = grid[result["number"]]
        print(f"{result['number']:2} {name} {env} {settings}{' (kept apart)' if is_apart(result['number']) else ''}")
        for row in result["rows"]:
            mark = "*" if row["what"] == result["chosen"] else " "
            error = row["predicted"] / row["measured"] - 1
            estimate = " (estimate)" if row["estimate"] else ""
            print(
                f"   {mark} {row['what']:52} {row['predicted']:12,.0f} {row['measured']:12,.0f} {error:+5.0%}{estimate}"
            )
        print(f"     predicted in {result['seconds']:.1f} s; chosen {share_of_best(result):.2f} of the best")
    for title, part in parts(results).items():
        print(f"{title}: {summary(part)}")


def table(results: list[dict[str, Any]], grid: Sequence[Configuration]) -> str:
    """The chosen candidate of every configuration, as Markdown."""
    lines = ["| algorithm | environment | chosen | predicted | measured | of the best |", "|---|---|---|---|---|---|"]
    for result in results:
        name, env, settings = grid[result["number"]]
        row = next(row for row in result["rows"] if row["what"] == result["chosen"])
        flags = " ".join(f"`{key}={value}`" for key, value in settings.items())
        rates = f"{row['predicted']:,.0f} | {row['measured']:,.0f} | {share_of_best(result):.2f}"
        mark = " *" if is_apart(result["number"]) else ""
        lines.append(f"| `{name}` {flags}{mark} | `{env}` | {row['what']} | {rates} |")
    return "\n".join(lines)


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """A chart of predicted against measured speed."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 5), layout="constrained")
    for (title, part), face in zip(parts(results).items(), ("C0", "none"), strict=False):
        rows = [row for result in part for row in result["rows"]]
        points = [row["measured"] for row in rows], [row["predicted"] for row in rows]
        axes.scatter(*points, s=22, edgecolors="C0", facecolors=face, label=f"{title}: {len(rows)} candidates")
    rates = [row["measured"] for result in results for row in result["rows"]]
    ends = [0.7 * min(rates), 1.4 * max(rates)]
    axes.plot(ends, ends, color="0.4", linewidth=1)
    low, high = ([factor * x for x in ends] for factor in (0.7, 1.3))
    axes.fill_between(ends, low, high, color="0.88", zorder=0, label="within 30%")
    axes.set(xscale="log", yscale="log", xlabel="measured steps/s", ylabel="predicted steps/s", xlim=ends, ylim=ends)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=110)
