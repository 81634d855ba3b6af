"""Channels and mailboxes that record the time of every send and receive for the timeline."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from fragmenta.graph import Interface
from fragmenta.profiling.timeline import Crossing, Part, Stopwatch
from fragmenta.worker.channels.mailbox import Bundle, Mailbox
from fragmenta.worker.channels.memory import End, Receiver, Sender


class _TimedEnd:
    """One end of a channel; records the time of every value."""

    def __init__(self, end: End, stopwatch: Stopwatch, interface: Interface, between: str) -> None:
        self._end, self._stopwatch, self._interface, self._between = end, stopwatch, interface, between
        self._number = 0
        self._parts: tuple[Part, ...] = ()
        """All values of a channel have one shape. It is formatted once, as that costs more than the rest of a note."""

    def fill(self) -> float:
        """The fill of the channel."""
        return self._end.fill()

    def close(self) -> None:
        """Close the channel."""
        self._end.close()

    def _note(self, value: Any, began: float) -> None:
        # Also counts while the window is closed, so that the n-th value sent is the n-th received.
        self._number += 1
        notes = self._stopwatch.notes
        if notes is not None:
            now = time.monotonic()
            self._parts = self._parts or (_part(self._interface, value),)
            notes.append((self, began, now, self._number, self._end.fill()))

    def timeline_entry(self, begin: int, end: int, number: int, fill: float) -> Crossing:
        """A note as an entry of the timeline."""
        interface = self._interface
        sends = interface.producer == self._stopwatch.fragment
        channel = f"{self._between} {interface.value.id}"
        peer = interface.consumer if sends else interface.producer
        return Crossing(begin, end, sends, peer, self._between, channel, str(number), self._parts, fill)


class TimedSender(_TimedEnd):
    """The sending end of a channel; records the time of every send."""

    _end: Sender

    def send(self, value: Any, timeout: float) -> None:
        """Send a value."""
        began = time.monotonic()
        self._end.send(value, timeout)
        self._note(value, began)


class TimedReceiver(_TimedEnd):
    """The receiving end of a channel; records the time of every receive."""

    _end: Receiver

    def recv(self, timeout: float) -> Any:
        """The next value."""
        began = time.monotonic()
        value = self._end.recv(timeout)
        self._note(value, began)
        return value


class TimedMailbox:
    """One end of a mailbox; records the time of every post and pick."""

    def __init__(self, box: Mailbox, stopwatch: Stopwatch, interfaces: Sequence[Interface]) -> None:
        self._box, self._stopwatch = box, stopwatch
        self._interfaces = {interface.key: interface for interface in interfaces}
        self._parts: tuple[Part, ...] = ()

    def post(self, bundle: Bundle, timeout: float) -> None:
        """Post a bundle."""
        began = time.monotonic()
        self._box.post(bundle, timeout)
        self._note(bundle, began)

    def pick(self, timeout: float) -> Bundle:
        """Pick a bundle."""
        began = time.monotonic()
        bundle = self._box.pick(timeout)
        self._note(bundle, began)
        return bundle

    def fill(self) -> float:
        """The fill of the mailbox."""
        return self._box.fill()

    def end(self) -> None:
        """Make posts return at once."""
        self._box.end()

    def close(self) -> None:
        """Close the mailbox."""
        self._box.close()

    def _note(self, bundle: Bundle, began: float) -> None:
        notes = self._stopwatch.notes
        if notes is not None:
            now = time.monotonic()
            if not self._parts:
                self._parts = tuple(_part(self._interfaces[key], value) for key, value in bundle.values.items())
            notes.append((self, began, now, bundle.replica, bundle.iteration, self._box.fill()))

    def timeline_entry(self, begin: int, end: int, replica: int, iteration: int, fill: float) -> Crossing:
        """A note as an entry of the timeline."""
        interface = next(iter(self._interfaces.values()))
        sends = interface.producer == self._stopwatch.fragment
        between = f"{interface.producer} -> {interface.consumer}"
        peer = interface.consumer if sends else interface.producer
        return Crossing(begin, end, sends, peer, between, between, f"{replica}.{iteration}", self._parts, fill)


def _part(interface: Interface, value: Any) -> Part:
    text = str(dataclasses.replace(interface.value, shape=tuple(value.shape)))
    return Part(interface.value.id, interface.name or text, text, value.nbytes)
