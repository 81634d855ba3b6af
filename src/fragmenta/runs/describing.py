"""How runs and results show themselves: a line in a terminal, a curve and a table in a notebook."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fragmenta.drawing.html_pieces import curve, listing, table
from fragmenta.runs.episode_statistics import RecentEpisodes

SHOWN = ("algorithm", "env", "policy", "engine", "replicas", "seed", "total_steps", "return_mean", "ended")
"""Entries of a summary or a configuration that the table shows."""


def describe(facts: Mapping[str, Any]) -> str:
    """One line about a run, from its summary or, before it has one, its configuration."""
    text = f"{facts['algorithm']} on {facts['env']} under {facts['policy']}"
    if "params_sha256" not in facts:
        return text
    mean = facts["return_mean"]
    episodes = "no episode ended" if mean is None else f"return {mean:.1f} over the latest episodes"
    early = "" if facts.get("ended", "completed") == "completed" else f"; ended early: {facts['ended']}"
    speed = f"{facts['total_steps']:,} steps at {facts['steps_per_second']:,.0f} steps/s"
    return f"{text}: {episodes}, {speed}{early}"


def only_in_python(path: Path, config: Mapping[str, Any]) -> str | None:
    """How to open a run from Python, if it needs an algorithm or an environment that no command can make."""
    unnamed = config.get("only_in_python") or str(config.get("algorithm")).startswith("__main__:")
    needed = ["algorithm"] * bool(unnamed) + ["env"] * ("env_options" in config and config["env_options"] is None)
    return f"fragmenta.load({str(path)!r}, {', '.join(f'{name}=...' for name in needed)})" if needed else None


def as_html(line: str, records: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> str:
    """The line, the curve of the return, and a table of facts, as HTML."""
    recent, points = RecentEpisodes(), []
    for record in records:
        if record.get("episodes") and record.get("return_mean") is not None:
            recent.add(record["episodes"], record["return_mean"] * record["episodes"])
            points.append((record["steps"], recent.return_mean))
    end = records[-1]["steps"] if records else 0
    rows = [(name, _number(value) if isinstance(value, int | float) else str(value)) for name, value in _entries(facts)]
    return listing(line) + curve(points, end, "environment steps", "return") + table(rows)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def _entries(facts: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name.replace("_", " "), facts[name]) for name in SHOWN if facts.get(name) is not None]
