"""Machines of a pretended network: namespaces with an address each, joined by a bridge, whose links can be cut."""

import contextlib
import os
import signal
import subprocess
from typing import Any


class Network:
    """So many namespaces. A context manager: leaving it ends what runs in them. Only root can make them."""

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
        """What to put before a command that is to run in namespace `i`, under a host name of its own."""
        named = f'hostname machine-{i} && exec "$@"'
        return ["ip", "netns", "exec", self.space(i), "unshare", "--uts", "sh", "-c", named, "sh"]

    def cut(self, i: int) -> None:
        """Cut the link of namespace `i` to all others."""
        _ip("link", "set", self._outside(i), "down")

    def mend(self, i: int) -> None:
        """Join it again."""
        _ip("link", "set", self._outside(i), "up")

    def close(self) -> None:
        """End all processes in the namespaces, and remove them."""
        for i in range(self._count):
            found = subprocess.run(["ip", "netns", "pids", self.space(i)], capture_output=True, text=True).stdout
            for pid in found.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            # A namespace outlives its name while a connection in it still tries to reach the other side.
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
