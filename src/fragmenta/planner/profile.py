"""What is known of a machine: measured costs of compiled programs and of environments, kept from run to run."""

import contextlib
import copy
import dataclasses
import fcntl
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax

from fragmenta.engines.hardware import cache_folder
from fragmenta.planner.costs import Cost
from fragmenta.planner.units import Unit
from fragmenta.policies.machines import Device, Machines
from fragmenta.version import __version__

CALL_SECONDS = {"cpu": 1e-5, "gpu": 3e-5, "tpu": 3e-5}
"""What calling a compiled program takes at least."""
OPERATION_SECONDS = 2e-7
"""What each operation takes at least on a CPU: a few are fused into one loop."""
KERNEL_SECONDS = 1.4e-6
"""What each operation that is not fused takes at least on an accelerator. With the shares below, PPO on CartPole on an
H200 is predicted within 4% of what was measured there, from 2,048 to 65,536 environments (docs/scaling.md)."""
FLOPS_SHARE, BANDWIDTH_SHARE = 0.6, 0.83
"""What an accelerator attains of its published peaks."""
SCHEMA = 2


@dataclasses.dataclass(frozen=True)
class Entry:
    """The cost of a unit of work, with what it was taken for when it was only estimated."""

    stages: str
    estimate: float
    cost: Cost


class Profile:
    """Costs by identity, of one machine with one version of everything that compiles; read from a file and kept there.

    What was not measured is estimated from operations and bytes, times the factor by which similar units were off.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path, self._read = path, _read(path)
        self.units: dict[str, Entry] = {}
        self.notes: dict[str, Any] = {}
        """Other measurements by name, as JSON: of environments, and of whole plans."""
        with contextlib.suppress(KeyError, TypeError, AttributeError):
            self.units = {
                name: Entry(entry["stages"], entry["estimate"], Cost(**entry["cost"]))
                for name, entry in self._read["units"].items()
            }
            self.notes = copy.deepcopy(self._read["notes"])

    def keep(self) -> None:
        """Write what is new to its file, where others may have written meanwhile; a directory that cannot be written
        keeps nothing."""
        if self._path is None:
            return
        content = {
            "notes": self.notes,
            "units": {name: dataclasses.asdict(entry) for name, entry in self.units.items()},
        }
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                kept = _read(self._path)
                for part, values in content.items():
                    known = self._read[part]
                    kept[part] |= {name: value for name, value in values.items() if known.get(name) != value}
                whole = self._path.with_suffix(f".{os.getpid()}")
                whole.write_text(json.dumps({"schema": SCHEMA, **kept}))
                whole.replace(self._path)

    def add(self, units: Iterable[Unit], costs: Mapping[str, Cost], device: Device) -> None:
        """Add what was measured."""
        for unit in units:
            if unit.identity in costs:
                self.units[unit.identity] = Entry(_stages(unit), estimated(unit, device), costs[unit.identity])

    def cost(self, unit: Unit, device: Device, is_here: bool) -> Cost:
        """The cost of a unit on a device: measured, if that is a device of this machine, else estimated."""
        if is_here and (entry := self.units.get(unit.identity)):
            return entry.cost
        seconds = estimated(unit, device)
        factor, cores = self._factor(_stages(unit), seconds)
        return Cost(seconds * factor, cores if device.kind == "cpu" else 1.0, is_estimate=True)

    def _factor(self, stages: str, seconds: float) -> tuple[float, float]:
        """By how much the estimates of similar units were off, those of about the same size more than others; and how
        many cores were busy."""
        same_kind = [e for e in self.units.values() if e.stages.partition(" ")[0] == stages.partition(" ")[0]]
        similar = [entry for entry in same_kind if entry.stages == stages]
        similar = similar or [entry for entry in same_kind if entry.estimate > 3e-5]
        if not similar:
            return 1.0, 1.0
        nearest = sorted(similar, key=lambda entry: abs(math.log(entry.estimate / seconds)))[:3]
        ratios = [entry.cost.seconds / entry.estimate for entry in nearest]
        return statistics.geometric_mean(ratios), statistics.fmean(entry.cost.cores for entry in nearest)


def _read(path: Path | None) -> dict[str, dict[str, Any]]:
    """What a file has, as JSON; nothing if it is not a profile."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        content = json.loads(path.read_text()) if path else {}
        if content["schema"] == SCHEMA and all(isinstance(content[part], dict) for part in ("notes", "units")):
            return {part: content[part] for part in ("notes", "units")}
    return {"notes": {}, "units": {}}


def estimated(unit: Unit, device: Device) -> float:
    """Seconds of one call of a unit on a device, of one iteration in a burst: what its operations, its arithmetic and
    its traffic to memory take."""
    amounts = unit.amounts
    call = 0.0 if unit.is_burst else CALL_SECONDS[device.kind]
    if device.kind == "cpu":
        work = max(amounts.flops / device.flops, amounts.bytes / device.bandwidth)
        return call + amounts.operations * OPERATION_SECONDS + work
    arithmetic = amounts.flops / (FLOPS_SHARE * device.flops)
    traffic = amounts.bytes / (BANDWIDTH_SHARE * device.bandwidth)
    return call + amounts.kernels * KERNEL_SECONDS + max(arithmetic, traffic)


def profile_here(machines: Machines) -> Profile:
    """The profile of this machine, as far as it was measured before."""
    hardware = [device.device_kind for device in jax.local_devices()]
    parts = [
        __version__,
        jax.__version__,
        importlib.metadata.version("jaxlib"),
        platform.processor(),
        platform.machine(),
        _cpu_model(),
    ]
    text = json.dumps([*parts, hardware, [(node.cores, node.memory) for node in machines.nodes]])
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    return Profile(cache_folder().with_name("profiles") / f"{name}.json")


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "model\t", "stepping")):
                return line
    return ""


def _stages(unit: Unit) -> str:
    return f"{unit.kind} {unit.is_burst} {unit.width} {unit.segment.label}"
