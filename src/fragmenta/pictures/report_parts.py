"""The parts of a report about one run: figures, time, fragments, video, evaluations, settings."""

import base64
import json
from html import escape
from typing import Any

from fragmenta.drawing.flowchart import lay_out, read_flowchart
from fragmenta.drawing.flowchart_svg import to_svg
from fragmenta.pictures.run_files import (
    RunFiles,
    highest_return,
    is_number,
    recent_returns,
    series,
    steps_per_second,
)
from fragmenta.pictures.times import TIME_COLUMNS, time_rows
from fragmenta.pictures.words import duration_words, setting_words
from fragmenta.profiling.timings import bottleneck
from fragmenta.runs.episode_statistics import WINDOW
from fragmenta.runs.run_directory import VIDEOS as EVALUATION_VIDEOS
from fragmenta.runs.timeline_files import TIMINGS, TRACE, read_timings

BUSY = "busy/"
"""Prefix of a fragment's busy share: the share of time that it computed."""
VIDEOS = {".gif": "image/gif", ".mp4": "video/mp4"}
LARGEST_VIDEO = 30e6
"""In bytes. A larger video is named instead of shown, because a page of that size opens slowly."""


def run_details(run: RunFiles, commands: list[str]) -> str:
    """Everything about a run but its figures and curves."""
    parts = [
        _busy(run),
        _times(run),
        _graph(run),
        _videos(run),
        _evaluations(run),
        _settings(run),
        section("Next steps", f"<pre>{escape(chr(10).join(commands))}</pre>") if commands else "",
    ]
    return "\n".join(filter(None, parts))


def figures(run: RunFiles) -> str:
    """The key figures of a run."""
    recent, best, rate = recent_returns(run), highest_return(run), steps_per_second(run)
    summary = run.summary or {}
    wall = summary.get("wall_seconds", run.records[-1].get("seconds"))
    cards = [
        (f"{recent.values[-1]:,.1f}" if len(recent.values) else "-", f"return, latest {WINDOW} episodes"),
        ("-" if best is None else f"{best:,.1f}", "best return"),
        (f"{run.records[-1]['steps']:,}", "environment steps"),
        ("-" if rate is None else f"{rate:,.0f}", "steps per second"),
        (duration_words(wall), "wall time" if "wall_seconds" in summary else "training so far"),
    ]
    if "compile_seconds" in summary:
        cards.append((duration_words(summary["compile_seconds"]), "of which compiling"))
    content = "".join(f"<div><b>{value}</b><span>{name}</span></div>" for value, name in cards)
    return f'<div class="figures">{content}</div>'


def numeric(run: RunFiles) -> list[str]:
    """The names of all numeric entries in the records."""
    return list(dict.fromkeys(name for record in run.records for name, value in record.items() if is_number(value)))


def section(title: str, body: str) -> str:
    """A section of the page."""
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table that scrolls on a narrow screen."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    lines = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(f"<tr>{line}</tr>" for line in lines)}</table></div>'


def _busy(run: RunFiles) -> str:
    """The share of time that each fragment computed, if the records contain it."""
    names = [name for name in numeric(run) if name.startswith(BUSY)]
    shares = {name[len(BUSY) :]: float(series(run, name).values.mean()) for name in names}
    rows = [
        f'<span>{escape(name)}</span><i style="--part:{min(1.0, share):.1%}"></i><span>{share:.0%}</span>'
        for name, share in shares.items()
    ]
    return section("Share of time each fragment computed", f'<div class="share">{"".join(rows)}</div>') if rows else ""


def _times(run: RunFiles) -> str:
    """Where the time of an iteration goes, if the run was traced."""
    if not (run.path / TIMINGS).exists():
        return ""
    timings = read_timings(run.path)

    file = f"; the timeline is {run.path / TRACE}, for ui.perfetto.dev" if (run.path / TRACE).exists() else ""
    rows = [tuple(", ".join(cell.split("\n")) for cell in row) for row in time_rows(timings)]
    remark = f"<p>{escape(bottleneck(timings) + file)}</p>"
    return section("Where the time of an iteration goes", table(TIME_COLUMNS, rows) + remark)


def _graph(run: RunFiles) -> str:
    boxes, arrows = read_flowchart(run.graph or "")
    if not boxes:
        return ""
    if arrows:
        rows = [
            (f"{a.producer} to {a.consumer}", a.operator, a.values, f"{a.size}, {a.times}" if a.times else a.size)
            for a in arrows
        ]
        details = table(("from, to", "operator", "values", "per iteration"), rows)
    else:
        details = "<p>Nothing crosses between fragments.</p>"
    return section("Fragments", f'<div class="split">{to_svg(lay_out(boxes, arrows))}<div>{details}</div></div>')


def _videos(run: RunFiles) -> str:
    """The videos in the run directory, and the latest of an evaluation, inside the page."""
    parts = []
    recorded = sorted((run.path / EVALUATION_VIDEOS).glob("*.gif"))[-1:]  # the latest of those during training
    for path in [*sorted(path for path in run.path.iterdir() if path.suffix in VIDEOS), *recorded]:
        if path.stat().st_size > LARGEST_VIDEO:
            parts.append(f"<p>{escape(str(path))} is too large to be shown here.</p>")
            continue
        content = f"data:{VIDEOS[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode()}"
        label = escape(f"Episodes of the policy, {path.name}")
        if path.suffix == ".gif":
            parts.append(f'<img class="video" alt="{label}" src="{content}">')
        else:
            parts.append(f'<video class="video" controls aria-label="{label}" src="{content}"></video>')
    return section("Episodes", "".join(parts)) if parts else ""


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
    columns = ("environment steps", "mean return", "interval", "episodes", "actions", "mean length (steps)")
    return section("Evaluations", table(columns, rows)) if rows else ""


def _settings(run: RunFiles) -> str:
    others = {name: value for name, value in run.config.items() if name != "hyper_parameters"}
    return section("Hyper-parameters", f"{_pairs(run.config['hyper_parameters'])}<h2>Run</h2>{_pairs(others)}")


def _pairs(values: dict[str, Any]) -> str:
    pairs = [
        f'<div><dt title="{escape(name)}">{escape(setting_words(name))}</dt><dd>{_value(value)}</dd></div>'
        for name, value in values.items()
    ]
    return f"<dl>{''.join(pairs)}</dl>"


def _value(value: Any) -> str:
    if isinstance(value, dict) and value:
        text = escape(json.dumps(value, indent=2))
        return f"<details><summary>{len(value)} settings</summary><pre>{text}</pre></details>"
    if isinstance(value, (list, dict)):
        return escape(", ".join(map(str, value))) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (
        "none" if value is None else escape(f"{value:,}" if isinstance(value, int) and value >= 10_000 else str(value))
    )
