"""The machines of a cluster: nodes, their devices, and the links between these. Does not depend on JAX."""

import dataclasses
import functools
from collections import Counter

from fragmenta.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Link:
    """What lies between two devices: seconds until the first byte arrives, then bytes per second."""

    latency: float
    bandwidth: float

    def seconds(self, nbytes: float) -> float:
        """The time that a message of this size takes."""
        return self.latency + nbytes / self.bandwidth


@dataclasses.dataclass(frozen=True)
class Device:
    """What computes, as JAX sees it: a GPU or TPU, or some or all cores of a CPU."""

    kind: str
    """`cpu`, `gpu` or `tpu`, as in names of devices."""
    model: str
    memory: int
    """Bytes."""
    flops: float
    """Attainable operations per second in float32."""
    bandwidth: float
    """Bytes per second that it reads from and writes to its memory."""


# Peaks as vendors publish them: float32 outside of matrix units, and of products with several versions the one named
# behind the line. No program attains them: what was measured on a device is to take their place. The memory of a core
# is its share of a processor with 4 GB per core; of a node that is known, `cpu_devices` takes the node's own.
CPU_CORE = Device("cpu", "CPU core", 4 * 10**9, 78.4e9, 3.2e9)  # AMD EPYC 7763: 64 cores, 2.45 GHz, 204.8 GB/s
_GPUS = (
    Device("gpu", "H200", 141 * 10**9, 67e12, 4.8e12),  # SXM
    Device("gpu", "H100", 80 * 10**9, 67e12, 3.35e12),  # SXM
    Device("gpu", "A100", 80 * 10**9, 19.5e12, 2.039e12),  # SXM, 80 GB
    Device("gpu", "V100", 16 * 10**9, 15.7e12, 900e9),  # SXM2, 16 GB
    Device("gpu", "P100", 16 * 10**9, 9.3e12, 732e9),  # PCIe, 16 GB
    Device("gpu", "L40", 48 * 10**9, 90.5e12, 864e9),
    Device("gpu", "T4", 16 * 10**9, 8.1e12, 320e9),
    Device("gpu", "RTX 4090", 24 * 10**9, 82.6e12, 1.008e12),
)
MODELS = {device.model: device for device in _GPUS}
"""The accelerators that are known, by model."""


def cpu_devices(count: int, cores: int, memory: int, core: Device = CPU_CORE) -> tuple[Device, ...]:
    """The CPU of a node as `count` devices, among which its cores and its memory are shared equally."""
    share = cores / count
    model = f"{share:g} x {core.model}"
    return (Device("cpu", model, memory // count, share * core.flops, share * core.bandwidth),) * count


@dataclasses.dataclass(frozen=True)
class Node:
    """One machine: its cores and memory in bytes, its devices, and the link between these or between its processes."""

    name: str
    cores: int
    memory: int
    devices: tuple[Device, ...]
    link: Link
    core: Device = CPU_CORE
    """One core of its CPU."""

    @functools.cached_property
    def cpu(self) -> Device:
        """All of its CPU as one device."""
        return cpu_devices(1, self.cores, self.memory, self.core)[0]


@dataclasses.dataclass(frozen=True)
class Machines:
    """The nodes of a cluster, and the link between any two of them."""

    nodes: tuple[Node, ...]
    link: Link

    @functools.cached_property
    def devices(self) -> tuple[str, ...]:
        """The names of all devices, numbered per kind over the nodes in order: `gpu:0`, `gpu:1`, ..."""
        return tuple(self._places)

    def device(self, name: str) -> Device:
        """The device of this name; ConfigError if there is none. If no CPU is listed, `cpu:3` is all of the CPU beside
        accelerator 3."""
        return self._place(name)[0]

    def node_of(self, name: str) -> Node:
        """The node that a device is part of; ConfigError if there is no such device."""
        return self.nodes[self._place(name)[1]]

    def between(self, a: str, b: str) -> Link:
        """The link between two devices: that of their node, or that between nodes."""
        node = self._place(a)[1]
        return self.nodes[node].link if node == self._place(b)[1] else self.link

    @functools.cached_property
    def _places(self) -> dict[str, tuple[Device, int]]:
        """Every device by name, with the index of its node: nodes of the same count may be equal."""
        places: dict[str, tuple[Device, int]] = {}
        numbers: Counter[str] = Counter()
        for index, node in enumerate(self.nodes):
            for device in node.devices:
                places[f"{device.kind}:{numbers[device.kind]}"] = device, index
                numbers[device.kind] += 1
        return places

    @functools.cached_property
    def _host_cpus(self) -> dict[str, tuple[Device, int]]:
        """The CPU beside every accelerator under the accelerator's number, as `Cluster.in_host_memory` names it."""
        if any(device.kind == "cpu" for device, _ in self._places.values()):
            return {}
        numbers = ((name.partition(":")[2], index) for name, (_, index) in self._places.items())
        return {f"cpu:{number}": (self.nodes[index].cpu, index) for number, index in numbers}

    def _place(self, name: str) -> tuple[Device, int]:
        place = self._places.get(name) or self._host_cpus.get(name)
        if place is None:
            counts = Counter(device.kind for device, _ in self._places.values())
            ranges = (f"{kind}:0 to {kind}:{count - 1}" if count > 1 else f"{kind}:0" for kind, count in counts.items())
            raise ConfigError(f"unknown device '{name}': the machines have {', '.join(ranges)}")
        return place
