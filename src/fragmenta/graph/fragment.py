"""What a distribution policy returns: fragments, and how values are delivered between them."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Delivery:
    """How a fragment receives values from another one, `source`.

    `every`: each value once, in order; with `lag` 1 that of the previous iteration, so that both run concurrently.
    `latest`: the newest value, without waiting. `any`: from whichever replica of the source is first; between fragments
    with as many replicas, from the one with the same index. `reply`: what the source, which takes `any`, computes from
    the values that this replica sent last.
    """

    source: str
    kind: Literal["every", "latest", "any", "reply"] = "every"
    lag: int = 0
    max_lag: int | None = None
    """For `latest`: results computed from values more than this many versions old are dropped."""

    @property
    def waits(self) -> bool:
        """Whether both sides run iterations in lockstep."""
        return self.kind == "every" and not self.lag


@dataclasses.dataclass(frozen=True)
class Fragment:
    """Stages that run together, the number of replicas along an axis, and their devices.

    `devices` has one name per replica, or one for all of them. Values from a fragment that `delivery` does not name are
    delivered `every`.
    """

    name: str
    stages: tuple[str, ...]
    devices: tuple[str, ...]
    replicas: int = 1
    axis: str | None = None
    delivery: tuple[Delivery, ...] = ()

    def delivery_from(self, source: str) -> Delivery:
        """How this fragment receives values from `source`."""
        return next((d for d in self.delivery if d.source == source), Delivery(source))
