"""Timelines: when a worker computed, waited, sent and received, in some iterations of a run.

The overhead without a stopwatch is one `if`; with one, it is an append to a private list, without a lock.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

MOST_NOTES = 200_000
"""With this many notes, a worker records no further iteration: long iterations must not fill the memory."""
SINCE_EPOCH = time.time_ns() - time.monotonic_ns()
"""Offset from the monotonic clock to Unix time, so that timelines of several processes align; one constant for all
workers, so that the order of events in this process is exact."""


@dataclasses.dataclass
class Window:
    """The iterations to record: from `first` (inclusive) to `last` (exclusive).

    Free-running fragments count their own iterations; they record while the others do.
    """

    first: int = 5
    last: int = 25
    is_open: bool = False
    ignores_others: bool = False
    """Free-running fragments go by their own iterations, too, because they cannot see the others."""

    @staticmethod
    def within(iterations: int) -> "Window":
        """Twenty iterations after warm-up, or fewer in a short run."""
        first = min(Window.first, iterations // 5)
        return Window(first, min(first + Window.last - Window.first, iterations))


class Iteration(NamedTuple):
    """One iteration, or several in one burst; all times here and below are nanoseconds since 1970."""

    begin: int
    end: int
    number: int
    burst: int
    """The number of iterations in the burst, or 1."""
    lag: int | None


class Span(NamedTuple):
    """A computation; or a span that contains others: a loop, or a receive (the wait for a value and its transfer to the
    device)."""

    begin: int
    end: int
    kind: Literal["segment", "host", "burst", "take", "loop"]
    label: str

    @property
    def computes(self) -> bool:
        """Whether this is computation, and not a span that contains others."""
        return self.kind in ("segment", "host", "burst")


class Part(NamedTuple):
    """A value that was sent, or a replica's part of one."""

    value: int
    """Its id in the graph."""
    name: str
    shape: str
    bytes: int


class Crossing(NamedTuple):
    """One side of a transfer, with the time this side waited. The other side has the same channel and ticket."""

    begin: int
    end: int
    sends: bool
    peer: str
    """The fragment on the other side."""
    between: str
    """The sending and the receiving worker."""
    channel: str
    ticket: str
    parts: tuple[Part, ...]
    fill: float
    """The fill of the channel or mailbox, right afterwards."""


@dataclasses.dataclass(frozen=True)
class WorkerTimeline:
    """The timeline of one worker. Holds only text and numbers, so that any format can store it."""

    fragment: str
    worker: str
    iterations: tuple[Iteration, ...]
    spans: tuple[Span, ...]
    crossings: tuple[Crossing, ...]

    def as_lists(self) -> list[Any]:
        """The timeline as nested lists, for JSON."""
        return [self.fragment, self.worker, self.iterations, self.spans, self.crossings, SINCE_EPOCH]

    @staticmethod
    def from_lists(rows: list[Any], ahead: float = 0.0) -> "WorkerTimeline":
        """The inverse of `as_lists`, in the time of this process; the clock of the other machine is `ahead` seconds
        ahead."""
        fragment, worker, iterations, spans, crossings, since_epoch = rows
        shift = SINCE_EPOCH - since_epoch - round(ahead * 1e9)

        def shifted(row: list[Any]) -> list[Any]:
            return [row[0] + shift, row[1] + shift, *row[2:]]

        return WorkerTimeline(
            fragment,
            worker,
            tuple(Iteration(*shifted(row)) for row in iterations),
            tuple(Span(*shifted(row)) for row in spans),
            tuple(Crossing(*shifted([*row[:7], tuple(Part(*part) for part in row[7]), row[8]])) for row in crossings),
        )


class TimelineSource(Protocol):
    """Makes timeline entries from notes: a step, or an end of a channel."""

    @property
    def timeline_entry(self) -> Callable[..., Span | Crossing | None]:
        """Takes begin, end and details of a note, and returns its entry; None if it has none."""
        ...


class Stopwatch:
    """Records the notes of one worker while the window is open."""

    def __init__(self, fragment: str, worker: str, window: Window, follows: bool) -> None:
        self.fragment, self.worker = fragment, worker
        self.notes: list[Any] | None = None
        """The list to append notes to; None while the window is closed."""
        self._window, self._follows = window, follows
        self._notes: list[Any] = []

    def begins(self, iteration: int) -> bool:
        """Call it when an iteration begins; returns whether it is recorded."""
        inside = self._window.first <= iteration < self._window.last
        if self._follows and not self._window.ignores_others:
            inside = self._window.is_open
        else:
            self._window.is_open = inside
        self.notes = self._notes if inside and len(self._notes) < MOST_NOTES else None
        return self.notes is not None

    def ends(self, iteration: int, began: float, lag: int | None) -> None:
        """Call it when the iteration has ended."""
        if self.notes is not None:
            # A free-running worker counts its own iterations, which are unrelated to the parameter versions.
            self.notes.append((Iteration, began, time.monotonic(), iteration, 1, None if self._follows else lag))

    def burst(self, step: TimelineSource, iteration: int, count: int, began: float) -> None:
        """Call it when the results of a burst have arrived."""
        if self.begins(iteration):
            now = time.monotonic()
            self._notes.append((step, began, now, count))
            self._notes.append((Iteration, began, now, iteration, count, None))

    def timeline(self) -> WorkerTimeline:
        """The timeline up to the end of the last complete iteration."""
        iterations, spans, crossings = [], [], []
        for source, began, ended, *details in self._notes:
            begin, end = (round(t * 1e9) + SINCE_EPOCH for t in (began, ended))
            if source is Iteration:
                iterations.append(Iteration(begin, end, *details))
            elif isinstance(entry := source.timeline_entry(begin, end, *details), Span):
                spans.append(entry)
            elif entry is not None:
                crossings.append(entry)
        last = max((iteration.end for iteration in iterations), default=0)
        return WorkerTimeline(
            self.fragment,
            self.worker,
            tuple(iterations),
            tuple(span for span in spans if span.end <= last),
            tuple(crossing for crossing in crossings if crossing.end <= last),
        )
