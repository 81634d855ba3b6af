"""What this process may use of its machine: cores and memory, within the limits of its control groups."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from fragmenta_host.options import cores

OWN_GROUPS = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")
MEMORY = Path("/proc/meminfo")
MEMORY_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""Of a group: how much memory it may take, and how much it has; in the second and the first version."""


def usable_cores() -> int:
    """The cores whose time this process gets. A container may see all cores of a machine and get the time of a few,
    which `cores` does not count: it also says to which cores processes can be pinned."""
    shares = [int(quota) / int(period) for quota, period in _processor_limits() if quota.isdigit()]
    return max(1, min([cores(), *map(int, shares)]))


def usable_memory() -> int:
    """The bytes of memory that this process and its children may take together."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [text for folder in _folders("memory") for name, _ in MEMORY_FILES if (text := _text(folder / name))]
    return min([total, *(int(limit) for limit in limits if limit.isdigit())])  # else it is "max"


def free_memory() -> int:
    """The bytes of memory that this process may take in addition: what is free, or in use only as a cache of files."""
    available = re.search(r"MemAvailable: +(\d+) kB", _text(MEMORY) or "")
    free = [int(available[1]) * 1024 if available else usable_memory()]
    for folder in _folders("memory"):
        for limit, taken in ((_text(folder / a), _text(folder / b)) for a, b in MEMORY_FILES):
            if limit and limit.isdigit() and taken:
                cache = re.search(r"^(?:total_)?inactive_file (\d+)", _text(folder / "memory.stat") or "", re.MULTILINE)
                free.append(int(limit) - int(taken) + (int(cache[1]) if cache else 0))
    return max(0, min(free))


def _processor_limits() -> Iterator[tuple[str, str]]:
    """Microseconds of computing, "max" or -1 for no limit, and the microseconds in which they may be used."""
    for folder in _folders("cpu"):
        if both := _text(folder / "cpu.max"):
            quota, period = both.split()
            yield quota, period
        if (quota := _text(folder / "cpu.cfs_quota_us")) and (period := _text(folder / "cpu.cfs_period_us")):
            yield quota, period


def _folders(controller: str) -> Iterator[Path]:
    """The folders of the groups of this process that may limit a resource, and of the groups around them."""
    for line in (_text(OWN_GROUPS) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        # The second version of control groups has one tree for all resources, `unified` where the first is used, too.
        for root in [GROUPS / controller] if controllers else [GROUPS, GROUPS / "unified"]:
            group = root / path.lstrip("/")
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(root))


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
