"""A process that ends what another one leaves behind when it is killed: two of Ray's agents stay for a minute."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path


def reap_after_us() -> subprocess.Popen[bytes]:
    """Start the reaper of all processes that descend from this one now; close its standard input to let it go."""
    marked = descendants(os.getpid())
    reaper = subprocess.Popen([sys.executable, "-m", "fragmenta_launch.reaper"], stdin=subprocess.PIPE, process_group=0)
    assert reaper.stdin is not None
    reaper.stdin.writelines(b"%d %d\n" % (pid, began) for pid, began in marked.items())
    reaper.stdin.flush()
    return reaper


def descendants(ancestor: int) -> dict[int, int]:
    """All processes that descend from this one, and when each began: a number may be given to another process later."""
    found = _processes()
    family = {ancestor}
    while more := {pid for pid, (parent, _) in found.items() if parent in family} - family:
        family |= more
    return {pid: found[pid][1] for pid in family - {ancestor}}


def main() -> None:
    """Read process ids until the process that wrote them ends, then end those that are still there."""
    marked = [tuple(map(int, line.split())) for line in sys.stdin]
    for pid, began in marked:
        if _processes().get(pid, (0, 0))[1] == began:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _processes() -> dict[int, tuple[int, int]]:
    """The parent and the time of beginning of every process; empty where there is no /proc."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = entry.read_text().rpartition(")")[2].split()
            found[int(entry.parent.name)] = int(fields[1]), int(fields[19])
    return found


if __name__ == "__main__":
    main()
