"""What a policy sees and what it answers, free of JAX."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The devices to use, by name (`cpu:0`, `gpu:1`), and how many replicas were asked for."""

    devices: tuple[str, ...]
    replicas: int = 1

    def spread(self, count: int, skip: int = 0) -> tuple[str, ...]:
        """Devices for `count` replicas, in turn, leaving the first `skip` to others where there are enough."""
        pool = self.devices[skip:] or self.devices
        return tuple(pool[i % len(pool)] for i in range(count))
