"""A replica's ends of its routes: channels where both sides wait for each other, mailboxes where they do not."""

import hashlib
import threading
from typing import Any

import jax

from fragmenta.engines.dispatch import Route
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
        """Mailboxes in this process, by the `box` of their routes."""
        self._pumps: dict[str, Pump] = {}
        self._lock, self._closed = threading.Lock(), False

    def open(self, route: Route, shares_memory: bool) -> dict[str, Any]:
        """Create the receiving end of a route; returns its address."""
        capacity = CAPACITY if route.delivery.kind == "every" else 1
        pipe, address = self._exchange.receiver(_pipe_name(route), _size(route), capacity, shares_memory)
        with self._lock:
            if route.delivery.kind == "every":
                self._receivers[route.name] = ArrayReceiver(pipe)
            else:
                self._replace_pump(route, lambda: pump_in(pipe, self._box(route), _keys(route), route.source))
        return address

    def connect(self, route: Route, address: dict[str, Any], timeout: float) -> None:
        """Create the sending end of a route. ClosedError if the ends were closed meanwhile, or the receiver is gone."""
        pipe, kind = self._exchange.sender(address, timeout), route.delivery.kind
        with self._lock:
            if self._closed:
                pipe.close()
                raise ClosedError
            if kind == "every":
                self._senders[route.name] = ArraySender(pipe)
            elif kind == "any":
                must_be_fresh = route.delivery.max_lag is not None
                self._boxes[route.box] = BundleSender(pipe, _keys(route), must_be_fresh)
            else:
                self._replace_pump(route, lambda: pump_out(self._box(route), pipe, _keys(route)))

    def sender(self, route: Route) -> Sender:
        """The sending end of a route."""
        return self._senders[route.name]

    def receiver(self, route: Route) -> Receiver:
        """The receiving end of a route."""
        return self._receivers[route.name]

    def mailbox(self, group: list[Route]) -> Mailbox:
        """This side of the mailbox that several routes share."""
        return self._boxes[group[0].box]

    def end(self) -> None:
        """The consumers are finished: make posts return at once."""
        for box in list(self._boxes.values()):
            box.end()

    def close(self) -> None:
        """Close both sides of every route and wake all waiting threads."""
        with self._lock:
            self._closed = True
        for connection in [*self._senders.values(), *self._receivers.values(), *self._boxes.values()]:
            connection.close()
        for pump in list(self._pumps.values()):
            pump.close()

    def _box(self, route: Route) -> Any:
        if route.box not in self._boxes:
            self._boxes[route.box] = mailbox(route.delivery)
        return self._boxes[route.box]

    def _replace_pump(self, route: Route, start: Any) -> None:
        if route.name in self._pumps:
            self._pumps[route.name].close()
        self._pumps[route.name] = start()


def _pipe_name(route: Route) -> str:
    """A hash: short and alphanumeric, whatever names distribution policies and merging give to fragments."""
    return hashlib.sha256(route.name.encode()).hexdigest()[:32]


def _keys(route: Route) -> list[tuple[int, str]]:
    return [interface.key for interface in route.interfaces]


def _size(route: Route) -> int:
    """Maximum bytes of a message on a route; an upper bound is fine, as memory that is never written costs nothing."""
    values = [interface.value for interface in route.interfaces]
    raw = [jax.eval_shape(to_raw, jax.ShapeDtypeStruct(value.shape, value.dtype)) for value in values]
    return bundle_size([(shape.dtype, shape.shape) for shape in raw])
