"""When a run started, changed its plan, was resumed and ended, and how: `history.jsonl` in its directory."""

import contextlib
import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fragmenta.runs.lock import is_locked
from fragmenta.runs.run_directory import read_json

HISTORY = "history.jsonl"


@contextlib.contextmanager
def recorded(run: Path, steps: int, stopped: tuple[type[BaseException], ...], **details: Any) -> Iterator[None]:
    """Record the start of a run after this many steps, with details, and how it ended: done, stopped (by one of these
    errors) or failed."""
    _append(run, "resumed" if steps else "started", steps=steps, **details)
    try:
        yield
    except BaseException as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        with contextlib.suppress(OSError):  # a full disk is what the error is about
            _append(run, "stopped" if isinstance(error, stopped) else "failed", reason=reason)
        raise
    _append(run, "done")


def record_change(run: Path, **details: Any) -> None:
    """Record that a run continues under another plan, with details."""
    _append(run, "changed", **details)


def read_history(run: Path) -> list[dict[str, Any]]:
    """The events of a run, oldest first; what is not an event, as after a kill, is ignored."""
    file = run / HISTORY
    events = []
    for line in file.read_text(errors="replace").splitlines() if file.exists() else ():
        with contextlib.suppress(ValueError):
            events.append(json.loads(line))
    return [event for event in events if isinstance(event, dict) and "event" in event and "time" in event]


def resumes(run: Path) -> list[int]:
    """The steps after which a run was resumed, without those that a later resume discarded."""
    marks: list[int] = []
    for event in read_history(run):
        if event["event"] == "resumed":
            marks = [*(mark for mark in marks if mark < event["steps"]), event["steps"]]
    return marks


def status_of(run: Path) -> tuple[str, str]:
    """The status of a run (running, done, stopped, failed), and when it changed; a killed run has failed."""
    events = read_history(run)
    changed = events[-1]["time"] if events else ""
    if is_locked(run):
        return "running", changed
    if not events:
        return "done" if read_json(run / "summary.json") else "stopped", ""
    last = events[-1]["event"]
    return last if last in ("done", "stopped", "failed") else "failed", changed


def _append(run: Path, event: str, **details: Any) -> None:
    time = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    with (run / HISTORY).open("a") as file:
        file.write(json.dumps({"event": event, "time": time, **details}) + "\n")
