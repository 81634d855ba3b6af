"""A process that cleans up after another one that is killed: two of Ray's agents would otherwise stay for a minute."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path


def reap_after_us() -> subprocess.Popen[bytes]:
    """Start a reaper for all current descendants of this process; closing its standard input triggers it."""
    marked = descendants(os.getpid())
    reaper = subprocess.Popen([sys.executable, "-m", "fragmenta_launch.reaper"], stdin=subprocess.PIPE, process_group=0)
    assert reaper.stdin is not None
    reaper.stdin.writelines(b"%d %d\n" % (pid, began) for pid, began in marked.items())
    reaper.stdin.flush()
    return reaper


def descendants(ancestor: int) -> dict[int, int]:
    """All descendants of a process with their start times, since process ids may be reused."""
    processes = _processes()
    family = {ancestor}
    while more := {pid for pid, (parent, _) in processes.items() if parent in family} - family:
        family |= more
    return {pid: processes[pid][1] for pid in family - {ancestor}}


def main() -> None:
    """Read process ids until the writing process ends, then kill those that are still running."""
    marked = [tuple(map(int, line.split())) for line in sys.stdin]
    for pid, began in marked:
        if _processes().get(pid, (0, 0))[1] == began:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _processes() -> dict[int, tuple[int, int]]:
    """The parent and the start time of every process; empty without /proc."""
    processes = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = entry.read_text().rpartition(")")[2].split()
            processes[int(entry.parent.name)] = int(fields[1]), int(fields[19])
    return processes


if __name__ == "__main__":
    main()
