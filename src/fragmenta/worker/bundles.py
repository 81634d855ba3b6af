"""What a worker exchanges with fragments that it does not wait for: all values of an iteration as one bundle."""

import collections
from collections.abc import Iterable
from typing import Any

from fragmenta.graph import Interface
from fragmenta.worker.channels.mailbox import Bundle
from fragmenta.worker.deploy import Ports


class Bundles:
    """A worker's side of its mailboxes; TimeoutError if one makes it wait for too long."""

    def __init__(self, ports: Ports, replica: int, sends: Iterable[Interface], deadline: float) -> None:
        self._ports, self._replica, self._deadline = ports, replica, deadline
        self._sizes = collections.Counter(interface.consumer for interface in sends)
        self._parcels: dict[str, dict[tuple[int, str], Any]] = {}
        self._picked: dict[str, Bundle] = {}
        self._version = 0
        """Of the parameters behind the values that it works on."""
        self.dropped = 0
        """Bundles dropped in this iteration because they were too stale."""

    def post(self, interface: Interface, value: Any, iteration: int) -> None:
        """Put a value into the parcel for its consumer; post the parcel once it is complete."""
        consumer, kind = interface.consumer, interface.delivery.kind
        parcel = self._parcels.setdefault(consumer, {})
        parcel[interface.key] = value
        if len(parcel) < self._sizes[consumer]:
            return
        box = self._ports.posts.get(consumer)
        if kind == "reply":
            answered = self._picked[consumer]
            box, iteration = self._ports.replies[consumer][answered.replica], answered.iteration
        assert box is not None
        version = iteration if kind == "latest" else self._version
        box.post(Bundle(parcel, version, self._replica, iteration), self._deadline)
        del self._parcels[consumer]

    def pick(self, interface: Interface, iteration: int) -> Bundle:
        """This iteration's bundle from a producer; all values from that producer come from the same bundle."""
        if interface.producer in self._picked:
            return self._picked[interface.producer]
        kind, max_lag = interface.delivery.kind, interface.delivery.max_lag
        while True:
            bundle = self._ports.pickups[interface.producer].pick(self._deadline)
            if kind == "reply":
                if bundle.iteration == iteration:  # else it is a reply to the replica that this one replaced
                    break
                continue
            self._version = bundle.version
            if kind == "latest" or max_lag is None or iteration - bundle.version <= max_lag:
                break
            self.dropped += 1
        self._picked[interface.producer] = bundle
        return bundle

    @property
    def first(self) -> Bundle | None:
        """The first bundle picked in this iteration, if any."""
        return next(iter(self._picked.values()), None)

    def next_iteration(self) -> None:
        """Pick other bundles from now on."""
        self._picked.clear()
        self.dropped = 0
