"""Accepts the connections of started processes in the coordinator, and opens them in the process that was started."""

import os
import secrets
import socket
import threading
from collections.abc import Callable
from typing import Any

from fragmenta.engines.control import Connection
from fragmenta.worker.channels.hello import accept_hello, say_hello
from fragmenta_host.options import cores

CONNECT_SECONDS = 30.0
NODE = "FRAGMENTA_NODE"
"""The environment variable with the cluster node of a process, set by launchers that know it."""


class Reception:
    """Listens for `count` processes that know its token; calls `arrived` with the index of each, its connection, and
    its self-description, in a thread of its own."""

    def __init__(self, address: str, count: int, arrived: Callable[[int, Connection, dict[str, Any]], None]) -> None:
        self.token = secrets.token_bytes(32)
        self._count, self._arrived = count, arrived
        self._listener = socket.create_server((address, 0))
        self._thread = threading.Thread(target=self._accept, name="fragmenta-accepts", daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """Where processes connect to."""
        return self._listener.getsockname()[:2]

    def close(self) -> None:
        """Stop listening."""
        # Without it, the thread in accept() would keep the port until somebody connects.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._welcome, args=(sock,), name="fragmenta-welcomes", daemon=True).start()

    def _welcome(self, sock: socket.socket) -> None:
        try:
            kind, _, number = accept_hello(sock, self.token).partition(".")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection, index = Connection(sock), int(number)
            if kind != "member" or not 0 <= index < self._count:
                raise ValueError(kind)
            hello, _ = connection.receive()
        except (OSError, EOFError, ValueError):
            sock.close()
            return
        self._arrived(index, connection, hello)


def arrive(coordinator: tuple[str, int], token: bytes, index: int) -> Connection:
    """Connect the process `index` to its coordinator, and describe it."""
    sock = socket.create_connection(coordinator, CONNECT_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    say_hello(sock, token, f"member.{index}")
    connection = Connection(sock)
    where = {"host": socket.gethostname(), "node": os.environ.get(NODE, ""), "machine": machine()}
    connection.send({"pid": os.getpid(), "cores": cores(), **where})
    return connection


def machine() -> str:
    """An id that is equal for processes that can share memory: the boot id, the PID namespace, and the node."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')} {os.environ.get(NODE, '')}"
    except OSError:
        return f"{socket.gethostname()} {os.getpid()}"


def pin_to_core(number: int) -> None:
    """Pin this process to one core; call it before JAX starts its threads."""
    if hasattr(os, "sched_setaffinity"):
        core_ids = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {core_ids[number % len(core_ids)]})
