"""A report on one run: a single HTML file without external resources."""

import json
import string
from html import escape
from importlib import resources
from typing import Any

import numpy as np

from fragmenta.pictures.charts import Line, chart
from fragmenta.pictures.flowchart import lay_out, read_flowchart
from fragmenta.pictures.flowchart_files import to_svg
from fragmenta.pictures.run_files import (
    RunFiles,
    Series,
    highest_return,
    is_number,
    recent_returns,
    returns,
    series,
    speed,
    steps_per_second,
)
from fragmenta.runs.episode_statistics import WINDOW

NOT_A_METRIC = {
    "iteration", "steps", "seconds", "episodes", "return_mean", "steps_per_second", "steps_per_second_overall",
}  # fmt: skip
"""Numbers of a record that are shown elsewhere, or are not useful as a curve."""
BUSY = "busy/"
"""Prefix of a fragment's busy share: the share of time that it computed."""
FIRST_METRICS = ("policy_loss", "value_loss", "entropy", "kl", "explained_variance", "length_mean")


def report_page(run: RunFiles, commands: list[str]) -> str:
    """The whole page; `commands` lists suggested next commands for the run."""
    sections = [
        _head(run),
        _figures(run),
        _learning(run),
        _metrics(run),
        _busy(run),
        _graph(run),
        _evaluations(run),
        _settings(run),
        _section("Next steps", f"<pre>{escape(chr(10).join(commands))}</pre>") if commands else "",
        _foot(run),
    ]
    template = string.Template(resources.files("fragmenta.pictures").joinpath("page.html").read_text(encoding="utf-8"))
    title = escape(f"{run.title}, {run.config['policy']}")
    return template.substitute(title=title, body="\n".join(filter(None, sections)))


def _head(run: RunFiles) -> str:
    subtitle = f"policy {run.placement}, engine {run.config.get('engine', '-')}, seed {run.config.get('seed', '-')}"
    head = f'<h1>{escape(run.title)}</h1><p class="under">{escape(subtitle)}</p>'
    if run.summary is None:
        total = run.config["hyper_parameters"].get("total_steps")
        goal = f" of {total:,}" if is_number(total) else ""
        head += f'<p class="note">This run has not finished: {run.records[-1]["steps"]:,}{goal} steps are recorded.</p>'
    return head


def _figures(run: RunFiles) -> str:
    recent, best, rate = recent_returns(run), highest_return(run), steps_per_second(run)
    summary = run.summary or {}
    wall = summary.get("wall_seconds", run.records[-1].get("seconds"))
    cards = [
        (f"{recent.values[-1]:,.1f}" if len(recent.values) else "-", f"return, latest {WINDOW} episodes"),
        ("-" if best is None else f"{best:,.1f}", "best return"),
        (f"{run.records[-1]['steps']:,}", "environment steps"),
        ("-" if rate is None else f"{rate:,.0f}", "steps per second"),
        (_duration(wall), "wall time" if "wall_seconds" in summary else "training so far"),
    ]
    if "compile_seconds" in summary:
        cards.append((_duration(summary["compile_seconds"]), "of which compiling"))
    figures = "".join(f"<div><b>{value}</b><span>{name}</span></div>" for value, name in cards)
    return f'<div class="figures">{figures}</div>'


def _learning(run: RunFiles) -> str:
    last = run.records[-1]["steps"]
    if not len(recent_returns(run).steps):
        return _section("Learning curve", "<p>No episode has ended.</p>" + _speed_chart(run, last))
    lines = [
        Line("per iteration", "raw", returns(run)),
        Line(f"latest {WINDOW} episodes", "main", recent_returns(run)),
    ]
    if run.evaluations:
        means = np.asarray([e["return_mean"] for e in run.evaluations], float)
        lines.append(
            Line(
                "evaluation",
                "eval",
                Series(np.asarray([e["steps"] for e in run.evaluations], float), means),
                low=np.asarray([e.get("return_low", e["return_mean"]) for e in run.evaluations], float),
                high=np.asarray([e.get("return_high", e["return_mean"]) for e in run.evaluations], float),
            )
        )
    return _section("Learning curve", chart("return", lines, last, "large") + _speed_chart(run, last))


def _speed_chart(run: RunFiles, last: float) -> str:
    rate = speed(run)
    if not len(rate.steps):
        return ""
    stairs = Series(np.repeat(rate.steps, 2)[:-1], np.repeat(rate.values, 2)[1:])
    return chart("steps per second", [Line("steps/s", "speed", stairs)], last, from_zero=True)


def _metrics(run: RunFiles) -> str:
    metrics = {name for name in _numeric(run) if name not in NOT_A_METRIC and not name.startswith(BUSY)}
    names = [name for name in FIRST_METRICS if name in metrics] + sorted(metrics - set(FIRST_METRICS))
    last = run.records[-1]["steps"]
    charts = [chart(_words(name), [Line(_words(name), "main", series(run, name))], last) for name in names]
    return _section("Losses and other metrics", f'<div class="many">{"".join(charts)}</div>') if charts else ""


def _numeric(run: RunFiles) -> list[str]:
    """The names of all numeric entries in the records."""
    return list(dict.fromkeys(name for record in run.records for name, value in record.items() if is_number(value)))


def _busy(run: RunFiles) -> str:
    """The share of time that each fragment computed, if the records contain it."""
    names = [name for name in _numeric(run) if name.startswith(BUSY)]
    shares = {name[len(BUSY) :]: float(series(run, name).values.mean()) for name in names}
    rows = [
        f'<span>{escape(name)}</span><i style="--part:{min(1.0, share):.1%}"></i><span>{share:.0%}</span>'
        for name, share in shares.items()
    ]
    return _section("Share of time each fragment computed", f'<div class="share">{"".join(rows)}</div>') if rows else ""


def _graph(run: RunFiles) -> str:
    boxes, arrows = read_flowchart(run.graph or "")
    if not boxes:
        return ""
    if arrows:
        rows = [
            (f"{a.producer} to {a.consumer}", a.operator, a.values, f"{a.size}, {a.times}" if a.times else a.size)
            for a in arrows
        ]
        details = _table(("from, to", "operator", "values", "per iteration"), rows)
    else:
        details = "<p>Nothing crosses between fragments.</p>"
    return _section("Fragments", f'<div class="split">{to_svg(lay_out(boxes, arrows))}<div>{details}</div></div>')


def _evaluations(run: RunFiles) -> str:
    rows = [
        (
            f"{e['steps']:,}",
            f"{e['return_mean']:,.1f}",
            f"{e['return_low']:,.1f} to {e['return_high']:,.1f}"
            if is_number(e.get("return_low")) and is_number(e.get("return_high"))
            else "-",
            str(e.get("episodes", "-")),
            {True: "deterministic", False: "sampled"}.get(e.get("deterministic", ""), "-"),
            f"{e['length_mean']:,.1f}" if is_number(e.get("length_mean")) else "-",
        )
        for e in run.evaluations
    ]
    columns = ("steps", "mean return", "interval", "episodes", "actions", "mean length")
    return _section("Evaluations", _table(columns, rows)) if rows else ""


def _settings(run: RunFiles) -> str:
    hyper_parameters = run.config["hyper_parameters"]
    others = {name: value for name, value in run.config.items() if name != "hyper_parameters"}
    body = f"{_pairs(hyper_parameters)}<h2>Run</h2>{_pairs(others)}"
    return _section("Hyper-parameters", body)


def _foot(run: RunFiles) -> str:
    text = f"fragmenta {run.config.get('version', '')}, run directory {run.path}"
    return f"<footer>{escape(text)}</footer>"


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    lines = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(f"<tr>{line}</tr>" for line in lines)}</table></div>'


def _pairs(values: dict[str, Any]) -> str:
    pairs = [f"<div><dt>{escape(name)}</dt><dd>{escape(_text(value))}</dd></div>" for name, value in values.items()]
    return f"<dl>{''.join(pairs)}</dl>"


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return json.dumps(value) if value else "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
