"""The metrics of a run, written in the background: JSON lines always, and whatever else is asked for."""

import json
import math
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from fragmenta.errors import StorageError
from fragmenta.runs.background import lower_priority
from fragmenta.runs.sinks import SINKS, Sink, point

CAPACITY = 4096
"""Records that may wait to be written; if there are more, training waits rather than lose one."""
EVERY = 0.1
"""Seconds between two writes. Of a run that is killed, the records of the last so many seconds are lost."""


class JsonLines:
    """A file that has whole lines only, one per record, each handed to the system as soon as it is written."""

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
            while lines:  # a disk that is filling up takes a part, and refuses the rest the next time
                lines = lines[os.write(self._file, lines) :]
        except OSError as error:
            raise self._failure(error) from None

    def _failure(self, error: OSError) -> StorageError:
        return StorageError(f"cannot write '{self._path}': {error.strerror}: the run has ended; free some space first")


class MetricsLog:
    """Writes records to `metrics.jsonl` of a directory and to the sinks, in a thread of its own.

    A sink that fails is given up with one warning. If the JSON lines fail, the next `add` or the end raises
    StorageError. Use it as a context manager: leaving it writes what is left.
    """

    def __init__(self, directory: Path, sinks: Sequence[str] = (), config: dict[str, Any] | None = None) -> None:
        self._lines = JsonLines(directory / "metrics.jsonl")
        self._waiting: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._closing = False
        self._added = self._written = self._flushing = 0
        self._failure: Exception | None = None
        self._opened = threading.Event()
        self._thread = threading.Thread(
            target=self._write_all, args=(directory, sinks, config or {}), name="fragmenta-metrics", daemon=True
        )
        self._thread.start()
        self._opened.wait()  # whatever a sink asks or says at its start comes before anything else is shown

    def add(self, record: dict[str, Any]) -> None:
        """Take a record, which nobody may change afterwards; waits only if very many are waiting already."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) < CAPACITY or self._failure)
            if self._failure:
                raise self._failure
            self._waiting.append(record)
            self._added += 1
            if len(self._waiting) == CAPACITY:
                self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all records so far are in the file."""
        with self._changed:
            self._flushing = added = self._added
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._written >= added or self._failure or self._closing)

    def close(self) -> None:
        """Write what is left, and end the thread; StorageError if not all of it could be written."""
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
                sinks[name] = SINKS[name][1](directory, config)
            except Exception as error:
                _give_up(name, error)
        self._opened.set()
        try:
            while (records := self._take()) is not None:
                if records:
                    self._lines.write(records)
                    with self._changed:
                        self._written += len(records)
                        self._changed.notify_all()
                    _write_point(sinks, records)
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
                    _give_up(name, error)

    def _is_urgent(self) -> bool:
        return self._closing or len(self._waiting) >= CAPACITY or self._flushing > self._written

    def _take(self) -> list[dict[str, Any]] | None:
        """All that came within a while; None after the last."""
        with self._changed:
            self._changed.wait_for(self._is_urgent, EVERY)
            if self._closing and not self._waiting:
                return None
            taken, self._waiting = self._waiting, []
            self._changed.notify_all()
            return taken


def _write_point(sinks: dict[str, Sink], records: list[dict[str, Any]]) -> None:
    scalars, steps = point(records), records[-1]["steps"]
    for name in list(sinks):
        try:
            sinks[name].write(scalars, steps)
        except Exception as error:
            del sinks[name]
            _give_up(name, error)


def _give_up(name: str, error: Exception) -> None:
    words = " ".join(str(error).split()) or type(error).__name__
    print(f"fragmenta: metrics no longer go to {name}, which failed: {words}", file=sys.stderr, flush=True)


def _line(record: dict[str, Any]) -> str:
    try:
        return json.dumps(record, allow_nan=False) + "\n"
    except ValueError:  # JSON has no word for what is not a number
        return json.dumps(_finite(record)) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cut_torn_line(file: int) -> None:
    """Remove what an earlier run may have left after the last whole line."""
    size = kept = os.fstat(file).st_size
    while kept and os.pread(file, 1, kept - 1) != b"\n":
        kept -= 1
    if kept < size:
        os.ftruncate(file, kept)
