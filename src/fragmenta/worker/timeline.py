"""What a worker did and when, for some iterations of a run: what it computed, whom it waited for, what crossed.

A worker without a recorder pays one `if`; one with a recorder appends to a list of its own, without a lock.
"""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from fragmenta.graph import Interface
from fragmenta.worker.channels.mailbox import Bundle, Mailbox
from fragmenta.worker.channels.memory import Channel
from fragmenta.worker.steps import Host, Rounds, Segment, Step, Take

MOST_NOTES = 200_000
"""A worker that has noted so much begins no further iteration: long iterations must not fill the memory."""
SINCE_EPOCH = time.time_ns() - time.monotonic_ns()
"""From this process' clock to the time of day, so that recordings of several processes fit; one number for all workers,
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
    """One iteration, or several in one launch; times in nanoseconds since 1970, here as everywhere below."""

    begin: int
    end: int
    number: int
    launched: int
    """1, or how many were one launch."""
    lag: int | None


class Span(NamedTuple):
    """Something that was computed; or what other spans are in: a loop, or a value that is taken, which is the wait for
    it and then its way to where it is used."""

    begin: int
    end: int
    kind: Literal["segment", "host", "launch", "take", "loop"]
    label: str

    @property
    def computes(self) -> bool:
        """Whether this is work, and not what other spans are in."""
        return self.kind in ("segment", "host", "launch")


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
class Recording:
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
    def from_lists(found: list[Any], ahead: float = 0.0) -> "Recording":
        """The inverse of `as_lists`, in the time of this process; `ahead` has the seconds by which the clock of the
        other's machine is ahead."""
        fragment, worker, iterations, spans, crossings, since_epoch = found
        shift = SINCE_EPOCH - since_epoch - round(ahead * 1e9)

        def moved(row: list[Any]) -> list[Any]:
            return [row[0] + shift, row[1] + shift, *row[2:]]

        return Recording(
            fragment,
            worker,
            tuple(Iteration(*moved(row)) for row in iterations),
            tuple(Span(*moved(row)) for row in spans),
            tuple(Crossing(*moved([*row[:7], tuple(Part(*part) for part in row[7]), row[8]])) for row in crossings),
        )


class Recorder:
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

    def launched(self, step: Step, iteration: int, count: int, began: float) -> None:
        """Say that the results of several iterations at once have come."""
        if self.begins(iteration):
            now = time.monotonic()
            self._kept.append((step, began, now, count))
            self._kept.append((Iteration, began, now, iteration, count, None))

    def recording(self) -> Recording:
        """Everything up to the end of the last whole iteration."""
        iterations, spans, crossings = [], [], []
        for note in self._kept:
            what, (begin, end) = note[0], (round(t * 1e9) + SINCE_EPOCH for t in note[1:3])
            if what is Iteration:
                iterations.append(Iteration(begin, end, *note[3:]))
            elif isinstance(what, Segment):
                spans.append(Span(begin, end, "launch" if len(note) > 3 else "segment", what.label))
            elif isinstance(what, Host):
                spans.append(Span(begin, end, "host", what.label))
            elif isinstance(what, Take):
                name = what.interface.name or str(what.interface.value)
                spans.append(Span(begin, end, "take", f"take {name} from {what.interface.producer}"))
            elif isinstance(what, Rounds):
                spans.append(Span(begin, end, "loop", f"loop x{what.length}"))
            elif isinstance(what, (RecordedChannel, RecordedMailbox)):
                crossings.append(what.crossing(begin, end, *note[3:]))
        last = max((iteration.end for iteration in iterations), default=0)
        return Recording(
            self.fragment,
            self.worker,
            tuple(iterations),
            tuple(span for span in spans if span.end <= last),
            tuple(crossing for crossing in crossings if crossing.end <= last),
        )


class RecordedChannel:
    """One end of a channel that notes how long every hand-over took."""

    def __init__(self, channel: Channel, recorder: Recorder, interface: Interface, between: str) -> None:
        self._channel, self._recorder, self._interface, self._between = channel, recorder, interface, between
        self._number = 0
        self._parts: tuple[Part, ...] = ()
        """All that goes through a channel has one shape, which is looked up once: that takes longer than all else."""

    def send(self, value: Any, timeout: float) -> None:
        """Hand over a value."""
        began = time.monotonic()
        self._channel.send(value, timeout)
        self._note(value, began)

    def recv(self, timeout: float) -> Any:
        """The next value."""
        began = time.monotonic()
        value = self._channel.recv(timeout)
        self._note(value, began)
        return value

    def fill(self) -> float:
        """That of the channel."""
        return self._channel.fill()

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def _note(self, value: Any, began: float) -> None:
        # Counted also while the window is closed: the n-th value sent is the n-th received.
        self._number += 1
        notes = self._recorder.notes
        if notes is not None:
            now = time.monotonic()
            self._parts = self._parts or (_part(self._interface, value),)
            notes.append((self, began, now, self._number, self._channel.fill()))

    def crossing(self, begin: int, end: int, number: int, fill: float) -> Crossing:
        """A note in plain words."""
        interface = self._interface
        sends = interface.producer == self._recorder.fragment
        channel = f"{self._between} {interface.value.id}"
        peer = interface.consumer if sends else interface.producer
        return Crossing(begin, end, sends, peer, self._between, channel, str(number), self._parts, fill)


class RecordedMailbox:
    """One end of a mailbox that notes how long it took to leave or to get a bundle."""

    def __init__(self, box: Mailbox, recorder: Recorder, interfaces: Sequence[Interface]) -> None:
        self._box, self._recorder = box, recorder
        self._interfaces = {interface.key: interface for interface in interfaces}
        self._parts: tuple[Part, ...] = ()

    def post(self, bundle: Bundle, timeout: float) -> None:
        """Leave a bundle."""
        began = time.monotonic()
        self._box.post(bundle, timeout)
        self._note(bundle, began)

    def pick(self, timeout: float) -> Bundle:
        """A bundle."""
        began = time.monotonic()
        bundle = self._box.pick(timeout)
        self._note(bundle, began)
        return bundle

    def fill(self) -> float:
        """That of the mailbox."""
        return self._box.fill()

    def end(self) -> None:
        """Let posting succeed at once."""
        self._box.end()

    def close(self) -> None:
        """Close the mailbox."""
        self._box.close()

    def _note(self, bundle: Bundle, began: float) -> None:
        notes = self._recorder.notes
        if notes is not None:
            now = time.monotonic()
            if not self._parts:
                self._parts = tuple(_part(self._interfaces[key], value) for key, value in bundle.values.items())
            notes.append((self, began, now, bundle.replica, bundle.iteration, self._box.fill()))

    def crossing(self, begin: int, end: int, replica: int, iteration: int, fill: float) -> Crossing:
        """A note in plain words."""
        interface = next(iter(self._interfaces.values()))
        sends = interface.producer == self._recorder.fragment
        between = f"{interface.producer} -> {interface.consumer}"
        peer = interface.consumer if sends else interface.producer
        return Crossing(begin, end, sends, peer, between, between, f"{replica}.{iteration}", self._parts, fill)


def _part(interface: Interface, value: Any) -> Part:
    shown = str(dataclasses.replace(interface.value, shape=tuple(value.shape)))
    return Part(interface.value.id, interface.name or shown, shown, value.nbytes)
