"""Descriptions of machines: files in TOML, and the templates that come with Fragmenta."""

import tomllib
from collections import Counter
from importlib import resources
from pathlib import Path
from typing import Any

from fragmenta.errors import ConfigError, closest, unknown
from fragmenta.policies.machines import MODELS, Device, Link, Machines, Node, cpu_devices
from fragmenta.policies.tables import LARGEST, Table, table_of

TEMPLATES = ("laptop", "gpu-workstation", "dgx-h100", "dgx-h100-pod", "msrl-azure", "msrl-local")
"""Names of descriptions that need no file."""
LINK_KEYS = ("latency_ms", "gbit_per_s", "gb_per_s")
NODE_KEYS = ("name", "count", "cores", "memory_gb", "cpu_devices", "gpus", "gpu", "tpus", "tpu", "link")
MODEL_KEYS = ("model", "memory_gb", "tflops", "bandwidth_gb_per_s")
MODEL_TABLE = "a table with memory_gb, tflops and bandwidth_gb_per_s"
LINK_TABLE = "a table, as in { latency_ms = 0.01, gb_per_s = 16 }"


def read_machines(path: str | Path) -> Machines:
    """The machines that a template of this name describes, or the file at this path; ConfigError if it does not."""
    name = str(path)
    if name in TEMPLATES:
        template = resources.files("fragmenta.policies").joinpath("templates", f"{name}.toml")
        return _machines(tomllib.loads(template.read_text(encoding="utf-8")), name)
    if not Path(path).suffix and not Path(path).exists():
        raise unknown("machines", name, TEMPLATES, ", or the path of a TOML file")
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read machines '{name}': {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # also for thousands of digits, and for lists in lists in lists
        raise ConfigError(f"machines '{name}' are not TOML: {error}") from None
    return _machines(values, name)


def _machines(values: dict[str, Any], file: str) -> Machines:
    top = table_of(values, "", file, ("link", "node"))
    entries = top.tables("node", NODE_KEYS, "a table [[node]] for every kind of node")
    nodes = [node for entry in entries for node in _nodes(entry)]
    devices = sum(len(node.devices) for node in nodes)
    if devices > LARGEST:
        raise ConfigError(f"machines '{file}' have {devices} devices: there may be at most {LARGEST}")
    repeated = [name for name, count in Counter(node.name for node in nodes).items() if count > 1]
    if repeated:
        raise ConfigError(f"machines '{file}' have two nodes of name {repeated[0]!r}: give each [[node]] its own name")
    if len(nodes) == 1 and "link" not in top.values:
        return Machines(tuple(nodes), nodes[0].link)
    expected = "a table [link] with latency_ms and gbit_per_s, because there are several nodes"
    return Machines(tuple(nodes), _link(top.table("link", LINK_KEYS, expected)))


def _nodes(entry: Table) -> list[Node]:
    name, count = entry.text("name"), entry.whole("count", 1)
    cores, memory = entry.whole("cores"), _bytes(entry, "memory_gb")
    devices = (*_accelerators(entry, "gpu"), *_accelerators(entry, "tpu"))
    # A process per core, as the engines start them; beside accelerators the CPU runs no fragment unless that is wanted.
    if "cpu_devices" in entry.values or not devices:
        devices = (*cpu_devices(entry.whole("cpu_devices", cores), cores, memory), *devices)
    link = _link(entry.table("link", LINK_KEYS, LINK_TABLE))
    names = [name] if count == 1 else [f"{name}-{i}" for i in range(count)]
    return [Node(each, cores, memory, devices, link) for each in names]


def _link(table: Table) -> Link:
    latency = table.number("latency_ms") / 1e3
    if "gbit_per_s" not in table.values:
        return Link(latency, table.number("gb_per_s", hint=", or gbit_per_s") * 1e9)
    if "gb_per_s" in table.values:
        raise table.rejected("gb_per_s", "either gb_per_s or gbit_per_s, not both")
    return Link(latency, table.number("gbit_per_s") * 1e9 / 8)


def _accelerators(entry: Table, kind: str) -> tuple[Device, ...]:
    number = f"{kind}s"
    if number not in entry.values:
        if kind in entry.values:
            raise entry.missing(number, f"how many, as in {number} = 8")
        return ()
    known = [device.model for device in MODELS.values() if device.kind == kind]
    names = f"one of {', '.join(known)}, or " if known else ""
    model = entry.values.get(kind)
    if isinstance(model, str):
        if model not in known:
            by_lower = {name.lower(): name for name in known}
            match = closest(model.lower(), by_lower)
            hint = f"; did you mean '{by_lower[match]}'?" if match else ""
            raise entry.rejected(kind, f"{names}{MODEL_TABLE}{hint}")
        return (MODELS[model],) * entry.whole(number)
    table = entry.table(kind, MODEL_KEYS, f"{names}{MODEL_TABLE}")
    memory, flops = _bytes(table, "memory_gb"), table.number("tflops") * 1e12
    bandwidth = table.number("bandwidth_gb_per_s") * 1e9
    return (Device(kind, table.text("model", kind), memory, flops, bandwidth),) * entry.whole(number)


def _bytes(table: Table, key: str) -> int:
    return max(1, round(table.number(key) * 1e9))
