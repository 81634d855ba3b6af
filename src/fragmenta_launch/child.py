"""Entry point of a process of the cluster engine. Its order comes on standard input, hidden from other users."""

import ctypes
import json
import os
import signal
import sys
from importlib import import_module
from typing import IO

PR_SET_PDEATHSIG = 1


def write_order(
    stream: IO[bytes], serve: str, coordinator: tuple[str, int], token: bytes, index: int, job: bytes
) -> None:
    """Write a process' order, for `main` at the other end of the stream."""
    host, port = coordinator
    order = {"serve": serve, "host": host, "port": port, "token": token.hex(), "index": index, "parent": os.getpid()}
    with stream:
        stream.write(json.dumps(order).encode() + b"\n" + job)


def main() -> None:
    """Read the order and serve, until the work is done or the parent process ends."""
    order = json.loads(sys.stdin.buffer.readline())
    job = sys.stdin.buffer.read()
    _end_with(order["parent"])
    module, function = order["serve"].split(":")
    serve = getattr(import_module(module), function)
    serve((order["host"], order["port"]), bytes.fromhex(order["token"]), order["index"], job)


def _end_with(parent: int) -> None:
    """Make the kernel kill this process when its parent ends, which works even while this process is stopped."""
    if sys.platform == "linux":  # elsewhere the lost connection to the coordinator ends it, unless it is stopped
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    main()
