"""A replica's ends of its links: channels where both sides wait for each other, mailboxes where they do not."""

import hashlib
import threading
from typing import Any

import jax

from fragmenta.engines.dispatch import Link
from fragmenta.worker.backends.xla import to_raw
from fragmenta.worker.channels.exchange import PipeExchange
from fragmenta.worker.channels.mailbox import Mailbox, mailbox
from fragmenta.worker.channels.memory import ClosedError, Receiver, Sender
from fragmenta.worker.channels.pipe import Pump
from fragmenta.worker.channels.receiving import ArrayReceiver, pump_in
from fragmenta.worker.channels.sending import ArraySender, BundleSender, pump_out
from fragmenta.worker.channels.wire import bundle_size

CAPACITY = 2
"""Slots of a channel before its sender waits. A pipe of bundles, which are large, has one slot besides the mailbox."""


class Ends:
    """All connections of a replica, until they are closed and replaced."""

    def __init__(self, exchange: PipeExchange) -> None:
        self._exchange = exchange
        self._senders: dict[str, Sender] = {}
        self._receivers: dict[str, Receiver] = {}
        self._boxes: dict[tuple[str, str, int], Any] = {}
        """Mailboxes in this process, by the `box` of their links."""
        self._pumps: dict[str, Pump] = {}
        self._lock, self._closed = threading.Lock(), False

    def open(self, link: Link, shares_memory: bool) -> dict[str, Any]:
        """Create the receiving end of a link; returns its address."""
        capacity = CAPACITY if link.delivery.kind == "every" else 1
        pipe, address = self._exchange.receiver(_pipe_name(link), _size(link), capacity, shares_memory)
        with self._lock:
            if link.delivery.kind == "every":
                self._receivers[link.name] = ArrayReceiver(pipe)
            else:
                self._replace_pump(link, lambda: pump_in(pipe, self._box(link), _keys(link), link.source))
        return address

    def connect(self, link: Link, address: dict[str, Any], timeout: float) -> None:
        """Create the sending end of a link. ClosedError if the ends were closed meanwhile, or the receiver is gone."""
        pipe, kind = self._exchange.sender(address, timeout), link.delivery.kind
        with self._lock:
            if self._closed:
                pipe.close()
                raise ClosedError
            if kind == "every":
                self._senders[link.name] = ArraySender(pipe)
            elif kind == "any":
                must_be_fresh = link.delivery.max_lag is not None
                self._boxes[link.box] = BundleSender(pipe, _keys(link), must_be_fresh)
            else:
                self._replace_pump(link, lambda: pump_out(self._box(link), pipe, _keys(link)))

    def sender(self, link: Link) -> Sender:
        """The sending end of a link."""
        return self._senders[link.name]

    def receiver(self, link: Link) -> Receiver:
        """The receiving end of a link."""
        return self._receivers[link.name]

    def mailbox(self, group: list[Link]) -> Mailbox:
        """This side of the mailbox that several links share."""
        return self._boxes[group[0].box]

    def end(self) -> None:
        """The consumers are finished: make posts return at once."""
        for box in list(self._boxes.values()):
            box.end()

    def close(self) -> None:
        """Close both sides of every link and wake all waiting threads."""
        with self._lock:
            self._closed = True
        for connection in [*self._senders.values(), *self._receivers.values(), *self._boxes.values()]:
            connection.close()
        for pump in list(self._pumps.values()):
            pump.close()

    def _box(self, link: Link) -> Any:
        if link.box not in self._boxes:
            self._boxes[link.box] = mailbox(link.delivery)
        return self._boxes[link.box]

    def _replace_pump(self, link: Link, start: Any) -> None:
        if link.name in self._pumps:
            self._pumps[link.name].close()
        self._pumps[link.name] = start()


def _pipe_name(link: Link) -> str:
    """A hash: short and alphanumeric, whatever names distribution policies and merging give to fragments."""
    return hashlib.sha256(link.name.encode()).hexdigest()[:32]


def _keys(link: Link) -> list[tuple[int, str]]:
    return [interface.key for interface in link.interfaces]


def _size(link: Link) -> int:
    """Maximum bytes of a message on a link; an upper bound is fine, as memory that is never written costs nothing."""
    values = [interface.value for interface in link.interfaces]
    raw = [jax.eval_shape(to_raw, jax.ShapeDtypeStruct(value.shape, value.dtype)) for value in values]
    return bundle_size([(shape.dtype, shape.shape) for shape in raw])
