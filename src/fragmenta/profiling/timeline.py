"""What a worker did and when, for some iterations of a run: what it computed, whom it waited for, what crossed.

A worker without a stopwatch pays one `if`; one with a stopwatch appends to a list of its own, without a lock.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

MOST_NOTES = 200_000
"""A worker that has noted so much begins no further iteration: long iterations must not fill the memory."""
SINCE_EPOCH = time.time_ns() - time.monotonic_ns()
"""From this process' clock to the time of day, so that timelines of several processes fit; one number for all workers,
so that the order of what happened in this process is kept to the nanosecond."""


@dataclasses.dataclass
class Window:
    """The iterations to record: from `first`, up to but without `last`.

    Fragments that run freely count iterations of their own; they record while the others do.
    """

    first: int = 5
    last: int = 25
    is_open: bool = False
    own: bool = False
    """Fragments that run freely go by their own iterations too, because they see no others."""

    @staticmethod
    def within(iterations: int) -> "Window":
        """Twenty iterations once everything is warm, or what a short run has of that."""
        first = min(Window.first, iterations // 5)
        return Window(first, min(first + Window.last - Window.first, iterations))


class Iteration(NamedTuple):
    """One iteration, or several in one burst; times in nanoseconds since 1970, here as everywhere below."""

    begin: int
    end: int
    number: int
    burst: int
    """1, or how many were one burst."""
    lag: int | None


class Span(NamedTuple):
    """Something that was computed; or what other spans are in: a loop, or a value that is taken, which is the wait for
    it and then its way to where it is used."""

    begin: int
    end: int
    kind: Literal["segment", "host", "burst", "take", "loop"]
    label: str

    @property
    def computes(self) -> bool:
        """Whether this is work, and not what other spans are in."""
        return self.kind in ("segment", "host", "burst")


class Part(NamedTuple):
    """A value that crossed, or a replica's part of one."""

    value: int
    """Its number in the graph."""
    name: str
    shape: str
    bytes: int


class Crossing(NamedTuple):
    """One side of a hand-over, with the time that this side waited. The other side has the same channel and ticket."""

    begin: int
    end: int
    sends: bool
    peer: str
    """The fragment on the other side."""
    between: str
    """The worker that sends and the one that receives."""
    channel: str
    ticket: str
    parts: tuple[Part, ...]
    fill: float
    """Of the channel or mailbox, right afterwards."""


@dataclasses.dataclass(frozen=True)
class WorkerTimeline:
    """What one worker did. Holds text and numbers only, so that it can be sent and kept in any format."""

    fragment: str
    worker: str
    iterations: tuple[Iteration, ...]
    spans: tuple[Span, ...]
    crossings: tuple[Crossing, ...]

    def as_lists(self) -> list[Any]:
        """As nested lists, for JSON."""
        return [self.fragment, self.worker, self.iterations, self.spans, self.crossings, SINCE_EPOCH]

    @staticmethod
    def from_lists(found: list[Any], ahead: float = 0.0) -> "WorkerTimeline":
        """The inverse of `as_lists`, in the time of this process; `ahead` has the seconds by which the clock of the
        other's machine is ahead."""
        fragment, worker, iterations, spans, crossings, since_epoch = found
        shift = SINCE_EPOCH - since_epoch - round(ahead * 1e9)

        def moved(row: list[Any]) -> list[Any]:
            return [row[0] + shift, row[1] + shift, *row[2:]]

        return WorkerTimeline(
            fragment,
            worker,
            tuple(Iteration(*moved(row)) for row in iterations),
            tuple(Span(*moved(row)) for row in spans),
            tuple(Crossing(*moved([*row[:7], tuple(Part(*part) for part in row[7]), row[8]])) for row in crossings),
        )


class Noted(Protocol):
    """What a worker can note: a step, or an end of a channel."""

    @property
    def noted(self) -> Callable[..., Span | Crossing | None]:
        """A note in plain words, of when it began, when it ended and what else was noted; None if it says nothing."""
        ...


class Stopwatch:
    """Takes the notes of one worker while the window is open."""

    def __init__(self, fragment: str, worker: str, window: Window, follows: bool) -> None:
        self.fragment, self.worker = fragment, worker
        self.notes: list[Any] | None = None
        """Where to note what happens; None while the window is closed."""
        self._window, self._follows = window, follows
        self._kept: list[Any] = []

    def begins(self, iteration: int) -> bool:
        """Say that an iteration begins; whether it is recorded."""
        inside = self._window.first <= iteration < self._window.last
        if self._follows and not self._window.own:
            inside = self._window.is_open
        else:
            self._window.is_open = inside
        self.notes = self._kept if inside and len(self._kept) < MOST_NOTES else None
        return self.notes is not None

    def ends(self, iteration: int, began: float, lag: int | None) -> None:
        """Say that the iteration has ended."""
        if self.notes is not None:
            # One that runs freely counts its own iterations, which say nothing of the versions of others.
            self.notes.append((Iteration, began, time.monotonic(), iteration, 1, None if self._follows else lag))

    def burst(self, step: Noted, iteration: int, count: int, began: float) -> None:
        """Say that the results of several iterations at once have come."""
        if self.begins(iteration):
            now = time.monotonic()
            self._kept.append((step, began, now, count))
            self._kept.append((Iteration, began, now, iteration, count, None))

    def timeline(self) -> WorkerTimeline:
        """Everything up to the end of the last whole iteration."""
        iterations, spans, crossings = [], [], []
        for what, began, ended, *details in self._kept:
            begin, end = (round(t * 1e9) + SINCE_EPOCH for t in (began, ended))
            if what is Iteration:
                iterations.append(Iteration(begin, end, *details))
            elif isinstance(entry := what.noted(begin, end, *details), Span):
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
