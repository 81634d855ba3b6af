"""What a policy answers with."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Fragment:
    """Stages that run together, how often they are replicated along an axis, and on which devices.

    `devices` has one name per replica; a single name serves all of them.
    """

    name: str
    stages: tuple[str, ...]
    devices: tuple[str, ...]
    replicas: int = 1
    axis: str | None = None
