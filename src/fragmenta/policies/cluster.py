"""What a policy sees and what it answers, free of JAX."""

import dataclasses

from fragmenta.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The devices to use, by name (`cpu:0`, `gpu:1`), how many replicas were asked for, and how far parts may drift."""

    devices: tuple[str, ...]
    replicas: int = 1
    """How often a policy's replicated fragment runs; 0 leaves it to training."""
    lag: int = 0
    """Iterations by which acting may stay behind learning, where a policy can overlap them."""
    max_lag: int | None = None
    """Under an asynchronous policy: drop what was made with parameters more than so many versions old."""
    agents: int = 1
    """How many agents act at once; Fragmenta fills it in."""
    host: tuple[str, ...] = ()
    """The stages that run on the host, not in a compiled program; Fragmenta fills it in."""
    nested: tuple[str, ...] = ()
    """The stages that are called within other stages, which may be placed instead of those; Fragmenta fills it in."""
    rollout: tuple[str, ...] = ()
    """The stages that are called in the same loop as `step`; Fragmenta fills it in."""
    apart: bool = False
    """Every device belongs to a process of its own, so that replicas which talk to each other meet across processes."""

    def spread(self, count: int, skip: int = 0) -> tuple[str, ...]:
        """Devices for `count` replicas, in turn, leaving the first `skip` to others where there are enough."""
        pool = self.devices[skip:] if len(self.devices) - skip >= count else self.devices
        return tuple(pool[i % len(pool)] for i in range(count))

    def one_each(self, count: int) -> tuple[str, ...]:
        """A device of its own for each of `count` replicas, or an error that says how many there are."""
        if count > len(self.devices):
            raise ConfigError(
                f"{count} replicas need a device each, but there are {len(self.devices)} ({', '.join(self.devices)}): "
                f"use --replicas {len(self.devices)}, or on a CPU --cpu-devices {count}"
            )
        return self.devices[:count]
