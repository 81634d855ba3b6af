"""The metrics of a run, written in the background: JSON lines always, other sinks on request."""

import json
import math
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from fragmenta.errors import StorageError
from fragmenta.runs.background import lower_priority
from fragmenta.runs.sinks import Sink, evaluation_point, open_sink, point

CAPACITY = 4096
"""Records that may be queued; beyond that, training blocks rather than lose one."""
EVERY = 0.1
"""Seconds between two writes. A run that is killed loses the records of at most this long."""


class JsonLines:
    """A file of complete lines, one per record, unbuffered."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            _cut_torn_line(self._file)
        except OSError as error:
            raise self._failure(error) from None

    def write(self, records: Sequence[dict[str, Any]]) -> None:
        """Append a line per record."""
        self._append("".join(_line(record) for record in records).encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _append(self, lines: bytes) -> None:
        try:
            while lines:  # a disk that fills up accepts a part, and fails on the next write
                lines = lines[os.write(self._file, lines) :]
        except OSError as error:
            raise self._failure(error) from None

    def _failure(self, error: OSError) -> StorageError:
        return StorageError(f"cannot write '{self._path}': {error.strerror}: the run has ended; free some disk space")


class MetricsLog:
    """Writes records to `metrics.jsonl` in a directory and to the sinks, in a background thread.

    A sink that fails is dropped with one warning. If writing `metrics.jsonl` fails, the next `add` or `close` raises
    StorageError. Use it as a context manager: leaving it writes the remaining records.
    """

    def __init__(self, directory: Path, sinks: Sequence[str] = (), config: dict[str, Any] | None = None) -> None:
        self._lines = JsonLines(directory / "metrics.jsonl")
        self._directory = directory
        self._waiting: list[dict[str, Any]] = []
        self._evaluations: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._closing = False
        self._added = self._written = self._flushing = 0
        self._failure: Exception | None = None
        self._opened = threading.Event()
        self._thread = threading.Thread(
            target=self._write_all, args=(directory, sinks, config or {}), name="fragmenta-metrics", daemon=True
        )
        self._thread.start()
        self._opened.wait()  # sinks may prompt or print at startup; let that come before any other output

    def add(self, record: dict[str, Any]) -> None:
        """Queue a record, which must not change afterwards; blocks only if the queue is full."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) < CAPACITY or self._failure)
            if self._failure:
                raise self._failure
            self._waiting.append(record)
            self._added += 1
            if len(self._waiting) == CAPACITY:
                self._changed.notify_all()

    def add_evaluation(self, record: dict[str, Any]) -> None:
        """Queue an evaluation for the sinks, with its video if it has one."""
        with self._changed:
            self._evaluations.append(record)

    def flush(self) -> None:
        """Wait until all records so far are written to the file."""
        with self._changed:
            self._flushing = added = self._added
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._written >= added or self._failure or self._closing)

    def close(self) -> None:
        """Write the remaining records and end the thread; StorageError if some could not be written."""
        self._end()
        if self._failure:
            raise self._failure

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._end()

    def _end(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _write_all(self, directory: Path, names: Sequence[str], config: dict[str, Any]) -> None:
        lower_priority()
        sinks: dict[str, Sink] = {}
        for name in names:
            try:
                sinks[name] = open_sink(name, directory, config)
            except Exception as error:
                _drop_sink(name, error)
        self._opened.set()
        try:
            while (records := self._take()) is not None:
                if records:
                    self._lines.write(records)
                    with self._changed:
                        self._written += len(records)
                        self._changed.notify_all()
                    scalars, steps = point(records), records[-1]["steps"]
                    _each(sinks, lambda sink, scalars=scalars, steps=steps: sink.write(scalars, steps))
                self._write_evaluations(sinks)
            self._write_evaluations(sinks)
        except Exception as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()
        finally:
            self._lines.close()
            for name, sink in sinks.items():
                try:
                    sink.close()
                except Exception as error:
                    _drop_sink(name, error)

    def _write_evaluations(self, sinks: dict[str, Sink]) -> None:
        with self._changed:
            evaluations, self._evaluations = self._evaluations, []
        for record in evaluations:
            scalars, steps, video = evaluation_point(record), record["steps"], record.get("video")
            if scalars:
                _each(sinks, lambda sink, scalars=scalars, steps=steps: sink.write(scalars, steps))
            if video:
                path = self._directory / video
                showing = {name: sink for name, sink in sinks.items() if hasattr(sink, "write_video")}
                failed = _each(showing, lambda sink, path=path, steps=steps: sink.write_video(path, steps))
                for name in failed:
                    del sinks[name]

    def _is_urgent(self) -> bool:
        return self._closing or len(self._waiting) >= CAPACITY or self._flushing > self._written

    def _take(self) -> list[dict[str, Any]] | None:
        """The records queued since the last call, after waiting a moment; None after the last one."""
        with self._changed:
            self._changed.wait_for(self._is_urgent, EVERY)
            if self._closing and not self._waiting:
                return None
            records, self._waiting = self._waiting, []
            self._changed.notify_all()
            return records


def _each(sinks: dict[str, Sink], write: Callable[[Any], None]) -> list[str]:
    """Write to each sink, and drop those that fail; returns their names."""
    failed = []
    for name in list(sinks):
        try:
            write(sinks[name])
        except Exception as error:
            del sinks[name]
            failed.append(name)
            _drop_sink(name, error)
    return failed


def _drop_sink(name: str, error: Exception) -> None:
    reason = " ".join(str(error).split()) or type(error).__name__
    print(f"fragmenta: metrics no longer go to {name}, which failed: {reason}", file=sys.stderr, flush=True)


def _line(record: dict[str, Any]) -> str:
    try:
        return json.dumps(record, allow_nan=False) + "\n"
    except ValueError:  # JSON has no NaN or infinity
        return json.dumps(_finite(record)) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cut_torn_line(file: int) -> None:
    """Remove a partial last line that an earlier run may have left."""
    size = end = os.fstat(file).st_size
    while end and os.pread(file, 1, end - 1) != b"\n":
        end -= 1
    if end < size:
        os.ftruncate(file, end)
