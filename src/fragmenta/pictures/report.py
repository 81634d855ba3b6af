"""A report on one or several runs: a single HTML file without external resources."""

import string
from collections import Counter
from collections.abc import Callable, Sequence
from html import escape
from importlib import resources

import numpy as np

from fragmenta.drawing.colours import COLOURS
from fragmenta.pictures.charts import Line, chart
from fragmenta.pictures.report_parts import BUSY, figures, numeric, run_details, section, table
from fragmenta.pictures.run_files import (
    RunFiles,
    Series,
    clock,
    highest_return,
    is_number,
    recent_returns,
    returns,
    series,
    speed,
    steps_per_second,
)
from fragmenta.pictures.words import duration_words, metric_words
from fragmenta.runs.episode_statistics import WINDOW

NOT_A_METRIC = {
    "iteration", "steps", "seconds", "episodes", "return_mean", "steps_per_second", "steps_per_second_overall",
}  # fmt: skip
"""Numbers of a record that are shown elsewhere, or are not useful as a curve."""
FIRST_METRICS = ("policy_loss", "value_loss", "entropy", "kl", "explained_variance", "length_mean")
CONTROLS = (
    '<div class="controls"><label>x axis <select><option value="steps">environment steps</option>'
    '<option value="seconds">time</option></select></label>'
    '<label>smoothing <input type="range" min="0" max="0.98" step="0.02" value="0"><output>off</output></label></div>'
)


def report_page(runs: Sequence[RunFiles], commands: Sequence[list[str]], live: bool = False) -> str:
    """The whole page; `commands` lists suggested next commands for each run. A live page polls for changes."""
    names = _names(runs)
    if len(runs) == 1:
        (run,) = runs
        title, head = f"{run.title}, {run.config['policy']}", _head(run) + figures(run)
        parts = run_details(run, commands[0])
    else:
        title = f"{len(runs)} runs: {', '.join(dict.fromkeys(run.title for run in runs))}"
        head = f"<h1>{escape(title)}</h1>{section('Runs', _overview(runs, names))}"
        parts = "".join(
            f'<details class="run"><summary>{escape(name)}</summary>{_head(run, "h2")}{figures(run)}'
            f"{run_details(run, suggestions)}</details>"
            for run, name, suggestions in zip(runs, names, commands, strict=True)
        )
    version = ", ".join(dict.fromkeys(str(run.config.get("version", "")) for run in runs))
    places = ", ".join(str(run.path) for run in runs)
    foot = f"<footer>{escape(f'fragmenta {version}, run directory {places}')}</footer>"
    body = [head, CONTROLS, _learning(runs, names), _metrics(runs, names), parts, foot]
    return _page(title, "\n".join(filter(None, body)), live)


def waiting_page(reason: str) -> str:
    """A live page in place of a report that cannot be drawn yet."""
    return _page("report", f'<p class="note">{escape(reason)}</p>{CONTROLS}', live=True)


def _page(title: str, body: str, live: bool) -> str:
    template = string.Template(resources.files("fragmenta.pictures").joinpath("page.html").read_text(encoding="utf-8"))
    requests = "connect-src 'self'; " if live else ""
    return template.substitute(title=escape(title), body=body, requests=requests, live=str(live).lower())


def _names(runs: Sequence[RunFiles]) -> list[str]:
    """The names of the run directories, with their parents where two are equal."""
    counts = Counter(run.path.resolve().name for run in runs)
    return [name if counts[name := run.path.resolve().name] == 1 else str(run.path) for run in runs]


def _head(run: RunFiles, level: str = "h1") -> str:
    subtitle = f"distribution policy {run.placement}, engine {run.config.get('engine', '-')}, {run.seed_words}"
    head = f'<{level}>{escape(run.title)}</{level}><p class="under">{escape(subtitle)}</p>'
    if run.summary is None:
        total = run.config["hyper_parameters"].get("total_steps")
        goal = f" of {total:,}" if is_number(total) else ""
        head += f'<p class="note">This run has not finished: {run.records[-1]["steps"]:,}{goal} steps are recorded.</p>'
    return head


def _overview(runs: Sequence[RunFiles], names: list[str]) -> str:
    rows = []
    for run, name in zip(runs, names, strict=True):
        recent, best, rate = recent_returns(run).values, highest_return(run), steps_per_second(run)
        rows.append(
            (
                name,
                run.title,
                f"{run.placement}, {run.seed_words}",
                f"{recent[-1]:,.1f}" if len(recent) else "-",
                "-" if best is None else f"{best:,.1f}",
                f"{run.records[-1]['steps']:,}" + ("" if run.summary else ", not finished"),
                "-" if rate is None else f"{rate:,.0f}",
                duration_words((run.summary or {}).get("wall_seconds", run.records[-1].get("seconds"))),
            )
        )
    last = f"return, latest {WINDOW} episodes"
    return table(("run", "trained", "placed", last, "best return", "steps", "steps/s", "wall time"), rows)


def _learning(runs: Sequence[RunFiles], names: list[str]) -> str:
    last = _last_step(runs)
    speeds = _lines(runs, names, "speed", "steps/s", _stairs)
    below = chart("steps per second", speeds, last, from_zero=True) if speeds else ""
    lines = _lines(runs, names, "main", f"latest {WINDOW} episodes", recent_returns)
    if not lines:
        return section("Learning curve", "<p>No episode has ended.</p>" + below)
    if len(runs) == 1:
        (run,) = runs
        lines = [Line("per iteration", "raw", _without_band(returns(run)), clock(run)), *lines, *_evaluations(run)]
    over_seeds = ", lowest to highest seed" if any(line.series.low is not None for line in lines) else ""
    title = "return" if len(runs) == 1 else f"return, mean over the latest {WINDOW} episodes"
    return section("Learning curve", chart(title + over_seeds, lines, last, "large") + below)


def _evaluations(run: RunFiles) -> list[Line]:
    if not run.evaluations:
        return []
    steps, means, lows, highs = (
        np.asarray([e.get(name, e["return_mean"]) for e in run.evaluations], float)
        for name in ("steps", "return_mean", "return_low", "return_high")
    )
    return [Line("evaluation", "eval", Series(steps, means), clock(run), low=lows, high=highs)]


def _without_band(line: Series) -> Series:
    return Series(line.steps, line.values)


def _stairs(run: RunFiles) -> Series:
    rate = speed(run)
    return Series(np.repeat(rate.steps, 2)[:-1], np.repeat(rate.values, 2)[1:]) if len(rate.steps) else rate


def _metrics(runs: Sequence[RunFiles], names: list[str]) -> str:
    metrics = {name for run in runs for name in numeric(run)}
    metrics = {name for name in metrics if name not in NOT_A_METRIC and not name.startswith(BUSY)}
    ordered = [name for name in FIRST_METRICS if name in metrics] + sorted(metrics - set(FIRST_METRICS))
    charts = [
        chart(
            metric_words(metric),
            _lines(runs, names, "main", metric_words(metric), lambda run, metric=metric: series(run, metric)),
            _last_step(runs),
        )
        for metric in ordered
    ]
    return section("Losses and other metrics", f'<div class="many">{"".join(charts)}</div>') if charts else ""


def _lines(
    runs: Sequence[RunFiles], names: list[str], look: str, alone: str, values: Callable[[RunFiles], Series]
) -> list[Line]:
    """A line per run that has values; a single run's line is called `alone`."""
    if len(runs) == 1:
        series = values(runs[0])
        return [Line(alone, look, series, clock(runs[0]))] if len(series.steps) else []
    pairs = [(i, values(run)) for i, run in enumerate(runs)]
    return [
        Line(names[i], look, series, clock(runs[i]), colour=COLOURS[i % len(COLOURS)])
        for i, series in pairs
        if len(series.steps)
    ]


def _last_step(runs: Sequence[RunFiles]) -> float:
    return max(run.records[-1]["steps"] for run in runs)
