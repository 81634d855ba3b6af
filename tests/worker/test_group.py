"""A distributed group of JAX processes: they compute together, listen on loopback only, and outlive each other."""

import ipaddress
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

MEMBER = Path(__file__).parents[1] / "support" / "group_member.py"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def group():
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    members = [
        subprocess.Popen(
            [sys.executable, MEMBER, str(port), "2", str(index)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        for index in range(2)
    ]
    yield members
    for member in members:
        member.kill()
        member.communicate()


def tell(member: subprocess.Popen, value: float) -> None:
    print(value, file=member.stdin, flush=True)


def answer(member: subprocess.Popen) -> str:
    """The next line of a member; output of JAX's libraries is skipped."""
    for line in member.stdout:
        if line.startswith(("sum", "lost")):
            return line
    return "ended"


def test_members_sum_and_listen_on_loopback_and_outlive_a_dead_one(group):
    for member, value in zip(group, (1.0, 2.0), strict=True):
        tell(member, value)
    assert [answer(member) for member in group] == ["sum 3.0\n", "sum 3.0\n"]
    for member in group:
        listening = [c.laddr.ip for c in psutil.Process(member.pid).net_connections() if c.status == "LISTEN"]
        assert listening
        addresses = [ipaddress.ip_address(ip.removeprefix("::ffff:")) for ip in listening]
        assert all(address.is_loopback for address in addresses), listening
    group[1].kill()
    tell(group[0], 1.0)
    assert answer(group[0]).startswith("lost ")
    tell(group[0], 1.0)
    assert answer(group[0]).startswith("lost ")  # it is still running, with its memory intact
