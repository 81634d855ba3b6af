"""A simulated network of machines: network namespaces with an address each, joined by a bridge; links can be cut."""

import contextlib
import os
import signal
import subprocess
from typing import Any


class Network:
    """A context manager for `count` namespaces; leaving it ends all processes in them. Needs root."""

    def __init__(self, count: int) -> None:
        self._mark = f"fr{os.getpid() % 1_000_000}"
        self._count = count
        self.addresses = [f"10.77.0.{i + 1}" for i in range(count)]

    def __enter__(self) -> "Network":
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def space(self, i: int) -> str:
        """The name of namespace `i`."""
        return f"{self._mark}n{i}"

    def inside(self, i: int) -> list[str]:
        """The command prefix that runs a command in namespace `i`, under its own host name."""
        script = f'hostname machine-{i} && exec "$@"'
        return ["ip", "netns", "exec", self.space(i), "unshare", "--uts", "sh", "-c", script, "sh"]

    def cut(self, i: int) -> None:
        """Cut the link between namespace `i` and all others."""
        _ip("link", "set", self._outside(i), "down")

    def mend(self, i: int) -> None:
        """Restore the link of namespace `i`."""
        _ip("link", "set", self._outside(i), "up")

    def close(self) -> None:
        """End all processes in the namespaces, and remove the namespaces."""
        for i in range(self._count):
            pids = subprocess.run(["ip", "netns", "pids", self.space(i)], capture_output=True, text=True).stdout
            for pid in pids.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            # A namespace outlives its name while a connection in it is still trying to reach the other side.
            subprocess.run(["ip", "link", "del", self._outside(i)], capture_output=True)
            subprocess.run(["ip", "netns", "del", self.space(i)], capture_output=True)
        subprocess.run(["ip", "link", "del", f"{self._mark}br"], capture_output=True)

    def _make(self) -> None:
        _ip("link", "add", f"{self._mark}br", "type", "bridge")
        _ip("link", "set", f"{self._mark}br", "up")
        for i, address in enumerate(self.addresses):
            outside, inside, space = self._outside(i), f"{self._mark}i{i}", self.space(i)
            _ip("netns", "add", space)
            _ip("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", space)
            _ip("link", "set", outside, "master", f"{self._mark}br", "up")
            _ip("-n", space, "addr", "add", f"{address}/24", "dev", inside)
            _ip("-n", space, "link", "set", inside, "up")
            _ip("-n", space, "link", "set", "lo", "up")

    def _outside(self, i: int) -> str:
        return f"{self._mark}o{i}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
