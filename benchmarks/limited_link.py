"""Two network namespaces with one link between them, of a given rate and latency. Needs root, `ip`, `tc` and Linux.

The rate is limited by `tc` (tbf). Kernels without netem cannot delay packets: both ends of the link are TUN devices,
and a process for each direction carries the packets from one to the other, late by the latency.
"""

import collections
import contextlib
import ctypes
import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from types import TracebackType

TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x1, 0x1000, 0x4000
CHECKSUMS_AND_SEGMENTS = 0x1 | 0x2 | 0x4
"""The kernel leaves segmenting to the link: packets of up to 64 KB, so Python carries a few gigabits per second."""
CLONE_NEWNET = 0x40000000
DEVICE = "tun0"


class LimitedLink:
    """A context manager: `spaces` are the names of the namespaces, `addresses` where each is reached by the other."""

    def __init__(self, gbit: float, seconds: float) -> None:
        self._gbit, self._seconds = gbit, seconds
        mark = f"fl{os.getpid() % 1_000_000}"
        self.spaces = f"{mark}a", f"{mark}b"
        self.addresses = "10.79.0.1", "10.79.0.2"
        self._carriers: list[int] = []

    def __enter__(self) -> "LimitedLink":
        try:
            self._make()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._close()

    def _make(self) -> None:
        for space in self.spaces:
            _run("ip", "netns", "add", space)
            _run("ip", "-n", space, "link", "set", "lo", "up")
        ends = [_tun_in(space) for space in self.spaces]
        for space, here, there in zip(self.spaces, self.addresses, reversed(self.addresses), strict=True):
            _run("ip", "-n", space, "addr", "add", here, "peer", there, "dev", DEVICE)
            _run("ip", "-n", space, "link", "set", DEVICE, "txqueuelen", "10000", "up")
            rate, burst = f"{self._gbit:g}gbit", "256kb"
            _run("tc", "-n", space, *f"qdisc add dev {DEVICE} root tbf rate {rate} burst {burst} limit 64mb".split())
        for source, target in (ends, ends[::-1]):
            carrier = os.fork()
            if not carrier:
                _carry(source, target, self._seconds)
            self._carriers.append(carrier)
        for end in ends:
            os.close(end)

    def _close(self) -> None:
        for carrier in self._carriers:
            os.kill(carrier, signal.SIGKILL)
            os.waitpid(carrier, 0)
        for space in self.spaces:
            pids = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True).stdout
            for pid in pids.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", space], capture_output=True)


def _carry(source: int, target: int, seconds: float) -> None:
    """Carry packets until this process is killed, which also happens with its parent."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    packets: collections.deque[tuple[float, bytes]] = collections.deque()
    while True:
        left = max(0.0, packets[0][0] - time.monotonic()) if packets else None
        if select.select([source], [], [], left)[0]:
            with contextlib.suppress(BlockingIOError):
                packet = os.read(source, 1 << 17)
                packets.append((time.monotonic() + seconds, packet))
        while packets and packets[0][0] <= time.monotonic():
            with contextlib.suppress(OSError):  # a packet that the other side does not take is lost, as on a network
                os.write(target, packets.popleft()[1])


def _tun_in(space: str) -> int:
    """A new TUN device in a namespace."""
    libc, here = ctypes.CDLL(None, use_errno=True), os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{space}", os.O_RDONLY)
    try:
        if libc.setns(there, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter network namespace {space}")
        end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI | IFF_VNET_HDR))
        fcntl.ioctl(end, TUNSETOFFLOAD, CHECKSUMS_AND_SEGMENTS)
        return end
    finally:
        libc.setns(here, CLONE_NEWNET)
        os.close(here)
        os.close(there)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def bare_link(link: LimitedLink) -> tuple[float, float]:
    """Seconds one way and bytes per second, as bare sockets find them."""
    code = "import limited_link; limited_link.{}"
    paths = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
    inside = [["ip", "netns", "exec", space, sys.executable, "-c"] for space in link.spaces]
    server = subprocess.Popen([*inside[1], code.format(f"answer('{link.addresses[1]}')")], env=paths)
    client = [*inside[0], code.format(f"ask('{link.addresses[1]}')")]
    try:
        text = subprocess.run(client, env=paths, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout
    finally:
        server.kill()
        server.wait()
    latency, bandwidth = map(float, text.split())
    return latency, bandwidth


PORT, MANY = 7777, 1 << 26


def answer(address: str) -> None:
    """Send back every byte, then take many."""
    with socket.create_server((address, PORT)) as listener:
        connection = listener.accept()[0]
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(50):
            connection.send(connection.recv(1))
        for _ in range(2):
            left = MANY
            while left:
                left -= len(connection.recv(min(left, 1 << 18)))
            connection.send(b"x")
        connection.recv(1)


def ask(address: str) -> None:
    """Print seconds one way and bytes per second, the latter once the connection has sent many bytes."""
    while True:
        try:
            connection = socket.create_connection((address, PORT))
            break
        except OSError:
            time.sleep(0.05)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    trips = []
    for _ in range(50):
        began = time.perf_counter()
        connection.send(b"x")
        connection.recv(1)
        trips.append(time.perf_counter() - began)
    for _ in range(2):
        began = time.perf_counter()
        connection.sendall(bytes(MANY))
        connection.recv(1)
        seconds = time.perf_counter() - began
    print(sorted(trips)[25] / 2, MANY / seconds)
