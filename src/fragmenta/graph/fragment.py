"""What a policy answers with."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Delivery:
    """How a fragment takes what another one, `source`, hands it.

    `every`: each value once, in order; with `lag` 1 that of the iteration before, so that both work at the same time.
    `latest`: the newest there is, without waiting. `any`: from whichever replica of the source comes first.
    """

    source: str
    kind: Literal["every", "latest", "any"] = "every"
    lag: int = 0
    max_lag: int | None = None
    """For `latest`: what was made from values more than so many versions old is dropped, not used."""

    @property
    def waits(self) -> bool:
        """Whether both sides go through the same iterations in step."""
        return self.kind == "every" and not self.lag


@dataclasses.dataclass(frozen=True)
class Fragment:
    """Stages that run together, how often they are replicated along an axis, and on which devices.

    `devices` has one name per replica; a single name serves all of them. What comes from a fragment that `delivery`
    does not name is delivered `every`.
    """

    name: str
    stages: tuple[str, ...]
    devices: tuple[str, ...]
    replicas: int = 1
    axis: str | None = None
    delivery: tuple[Delivery, ...] = ()

    def delivery_from(self, source: str) -> Delivery:
        """How this fragment takes what that one hands it."""
        return next((d for d in self.delivery if d.source == source), Delivery(source))
