"""The cluster that a distribution policy places stages on. Does not depend on JAX."""

import dataclasses

from fragmenta.errors import ConfigError
from fragmenta.policies.machines import Machines


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The devices to use, by name (`cpu:0`, `gpu:1`), numbers of replicas, and the lag allowed between fragments."""

    devices: tuple[str, ...]
    replicas: int = 1
    """Number of replicas of the replicated fragment; 0 lets training choose."""
    lag: int = 0
    """Iterations by which acting may lag behind learning, if the distribution policy can overlap them."""
    max_lag: int | None = None
    """Under an asynchronous distribution policy: drop data from parameters more than this many versions old."""
    replay: str = "device"
    """Where shards of a replay are: `device`, on the devices above, or `host`, in the memory of the host."""
    shards: int = 0
    """Number of shards of a replay, under a distribution policy that has them; 0 is as many as replicas."""
    learners: int = 1
    """Number of replicas of the learner, under a distribution policy that has them besides other replicas."""
    agents: int = 1
    """Number of agents; filled in by Fragmenta."""
    host: tuple[str, ...] = ()
    """The stages that run on the host, outside compiled programs; filled in by Fragmenta."""
    nested: tuple[str, ...] = ()
    """The stages nested in other stages, which may be placed instead of those; filled in by Fragmenta."""
    rollout: tuple[str, ...] = ()
    """The stages called in the same loop as `step`; filled in by Fragmenta."""
    apart: bool = False
    """Whether every device belongs to a separate process, so that replicas exchange values across processes."""
    machines: Machines | None = None
    """What the devices are part of: nodes, and the links between them; None if nobody described it."""

    def spread(self, count: int, skip: int = 0) -> tuple[str, ...]:
        """Devices for `count` replicas, round-robin, without the first `skip` devices if there are enough others."""
        pool = self.devices[skip:] if len(self.devices) - skip >= count else self.devices
        return tuple(pool[i % len(pool)] for i in range(count))

    def in_host_memory(self, devices: tuple[str, ...]) -> tuple[str, ...]:
        """For each of these devices, the CPU device to use in its place; one of a CPU is that already."""

        def cpu_device(device: str) -> str:
            kind, _, number = device.partition(":")
            # One process has one CPU device beside all its accelerators; separate processes have one each.
            return device if kind == "cpu" else f"cpu:{number if self.apart else 0}"

        return tuple(map(cpu_device, devices))

    def one_each(self, count: int, what: str = "replicas") -> tuple[str, ...]:
        """A separate device for each of `count` replicas; ConfigError if there are too few."""
        if count > len(self.devices):
            raise ConfigError(
                f"{count} {what} need a device each, but there are {len(self.devices)} ({', '.join(self.devices)}): "
                f"use --{what} {len(self.devices)}, or on a CPU --cpu-devices {count}"
            )
        return self.devices[:count]
