"""Launchers: processes start together, the reason of their end is reported, and none is left behind."""

import ipaddress
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from fragmenta.engines.launcher import Launcher
from fragmenta.engines.processes import ProcessLauncher
from fragmenta.engines.ray import RayLauncher

SERVE = "served:serve"
JOB = b"x" * 1_000_000
TOKEN = b"secret"
HERE = Path(__file__).parents[1] / "support"

sys.path.append(str(HERE))


class Coordinator:
    """Accepts the connections of the processes that a launcher starts."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        self.server = socket.create_server((launcher.address, 0))
        self.server.settimeout(60)
        self.connections: dict[int, socket.socket] = {}
        self.pids: dict[int, int] = {}

    def start(self, *indices: int) -> None:
        for index in indices:
            self.launcher.start(index, JOB, self.server.getsockname(), TOKEN)
        for _ in indices:
            connection, _ = self.server.accept()
            connection.settimeout(60)
            with connection.makefile("rb") as stream:
                token, index, pid = stream.readline().split()
            assert token == TOKEN
            if int(index) in self.connections:
                self.connections[int(index)].close()
            self.connections[int(index)], self.pids[int(index)] = connection, int(pid)

    def end(self, index: int) -> str:
        return eventually(lambda: self.launcher.ended(index))

    def close(self) -> None:
        self.launcher.close()
        for connection in (self.server, *self.connections.values()):
            connection.close()


def eventually(condition: Callable, seconds: float = 60):
    """The value of `condition` as soon as it is true; fails if that takes longer than `seconds`."""
    end = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.01)
    assert value, "did not happen in time"
    return value


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def family() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


@pytest.fixture(scope="module", autouse=True)
def no_thread_left():
    """As for all tests, but after the last test of the module, because several tests share one Ray."""
    yield
    assert not [t.name for t in threading.enumerate() if t.name.startswith("fragmenta-")]


@pytest.fixture(scope="module")
def logs(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def own_ray(logs):
    """A Ray started for these tests, with two processes on it."""
    coordinator = Coordinator(RayLauncher([{"CPU": 1}] * 2, logs=logs, serve=SERVE))
    yield coordinator
    before = family()
    coordinator.close()
    assert before
    assert not [process for process in before if not has_ended(process.pid)]


@pytest.fixture
def subprocesses(logs):
    coordinator = Coordinator(ProcessLauncher(logs, SERVE))
    yield coordinator
    coordinator.close()
    assert all(has_ended(pid) for pid in coordinator.pids.values())


@pytest.fixture(params=["subprocesses", "own_ray"])
def coordinator(request) -> Coordinator:
    return request.getfixturevalue(request.param)


@pytest.mark.full
def test_ends_are_described_and_lost_processes_are_restarted(coordinator):
    launcher = coordinator.launcher
    coordinator.start(0, 1)
    assert len(set(coordinator.pids.values())) == 2
    assert launcher.ended(0) is None
    os.kill(coordinator.pids[0], signal.SIGKILL)
    assert coordinator.end(0) == "was killed by SIGKILL"
    assert launcher.ended(1) is None
    coordinator.connections[1].sendall(b"3")
    assert coordinator.end(1) == "exited with code 3"
    coordinator.start(0)
    assert launcher.ended(0) is None
    os.kill(coordinator.pids[0], signal.SIGSTOP)
    launcher.kill(0)
    assert coordinator.end(0) == "was killed by SIGKILL"
    assert has_ended(coordinator.pids[0])


def test_neither_token_nor_job_is_on_the_command_line(coordinator):
    coordinator.start(0)
    started = psutil.Process(coordinator.pids[0])
    assert TOKEN.decode() not in " ".join(started.cmdline())


def test_the_output_of_each_process_is_in_its_own_file(coordinator, logs):
    log = logs / "process-1.log"
    log.unlink(missing_ok=True)
    coordinator.start(1)
    eventually(lambda: log.exists() and f"process 1 has {len(JOB)} bytes\n" in log.read_text())


@pytest.mark.full
@pytest.mark.parametrize(
    "launcher",
    [
        "ProcessLauncher(serve=SERVE)",
        pytest.param("RayLauncher([{'CPU': 1}] * 2, serve=SERVE)", marks=pytest.mark.full),
    ],
)
def test_all_processes_end_with_a_killed_parent_even_stopped_ones(launcher):
    script = f"""
import time
from test_launchers import *
coordinator = Coordinator({launcher})
coordinator.start(0, 1)
print(*coordinator.pids.values(), flush=True)
time.sleep(100)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=paths()) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        children = psutil.Process(parent.pid).children(recursive=True)
        os.kill(pids[0], signal.SIGSTOP)
        parent.kill()
    assert len(pids) == 2
    eventually(lambda: all(has_ended(child.pid) for child in children), seconds=5)


def test_our_own_ray_listens_on_loopback_only(own_ray):
    own_ray.start(0, 1)
    listening = {
        (process.name(), connection.laddr.ip)
        for process in (psutil.Process(), *family())
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }
    assert {"gcs_server", "raylet"} < {name for name, _ in listening}
    outside = [(name, ip) for name, ip in listening if not ipaddress.ip_address(ip.removeprefix("::ffff:")).is_loopback]
    assert not outside


def test_promised_output_that_never_arrives_does_not_block():
    class Cut:
        """A cluster in which a node with pending output was cut off."""

        exceptions = SimpleNamespace(GetTimeoutError=TimeoutError, RayError=Exception)
        requested = threading.Event()

        def wait(self, answers, timeout):
            return answers, []

        def get(self, answer, timeout=3600.0):
            self.requested.set()
            time.sleep(timeout)
            raise TimeoutError

    launcher = RayLauncher.__new__(RayLauncher)
    launcher._ray, launcher._closed = Cut(), False
    actor = SimpleNamespace(output=SimpleNamespace(remote=lambda: "lines"))
    listener = threading.Thread(target=launcher._listen, args=(0, actor), daemon=True)
    listener.start()
    assert Cut.requested.wait(10)
    launcher._closed = True
    listener.join(10)
    assert not listener.is_alive()


@pytest.mark.full
def test_a_lost_actor_is_replaced(own_ray):
    own_ray.start(0)
    psutil.Process(own_ray.pids[0]).parent().kill()
    assert own_ray.end(0) == "was lost with its Ray actor"
    assert eventually(lambda: has_ended(own_ray.pids[0]))
    own_ray.start(0)
    assert own_ray.launcher.ended(0) is None


def attach(address: str, **settings: str) -> str:
    """The output of another process that asks for the nodes of the cluster at `address`."""
    script = f"""
from fragmenta.engines.ray_access import slots
from fragmenta.errors import ConfigError
try:
    print(len(slots({address!r})), "nodes")
except ConfigError as error:
    print(error)
"""
    completed = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=paths(**settings))
    return completed.stdout.strip()


def paths(**settings: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **settings}


@pytest.mark.full
def test_a_cluster_is_only_joined_with_its_token(own_ray, tmp_path):
    import ray

    address = ray.get_runtime_context().gcs_address
    assert attach(address) == "1 nodes"
    refusal = attach(address, RAY_AUTH_TOKEN="0" * 64)
    assert refusal.startswith(f"the Ray cluster at {address} does not accept the token found here: start Ray on every")
    without = attach(address, RAY_AUTH_TOKEN="", RAY_AUTH_TOKEN_PATH="", HOME=str(tmp_path))
    assert without.startswith(f"no token was found here for the Ray cluster at {address}: start Ray on every machine")
    assert attach("127.0.0.1:1").startswith("no Ray cluster answers at 127.0.0.1:1")
    assert attach("ray://head").startswith("'ray://head' is not the address of a Ray cluster: expected host:port")


@pytest.mark.full
def test_a_cluster_without_token_authentication_is_refused(own_ray):
    script = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args=dict(num_cpus=1, include_dashboard=False))
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""
    head = [sys.executable, "-c", script]
    with subprocess.Popen(
        head, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=paths(RAY_AUTH_MODE="disabled")
    ) as open_to_all:
        address = open_to_all.stdout.readline().strip()
        assert attach(address).startswith(f"the Ray cluster at {address} runs code from anyone who can reach it: start")
        open_to_all.stdin.close()


@pytest.mark.full
def test_processes_move_to_other_nodes_when_nodes_die_until_there_is_no_room():
    settings = paths(RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0", RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="1" * 64)
    command = [sys.executable, HERE / "lose_nodes.py"]
    completed = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=settings, timeout=120)
    assert completed.stdout.splitlines()[-1:] == ["done"]


@pytest.mark.full
def test_more_than_the_cluster_has_is_refused(tmp_path):
    script = """
from fragmenta.engines.ray import RayLauncher
from fragmenta.errors import ConfigError
try:
    RayLauncher([{"GPU": 99}], placing_seconds=2)
except ConfigError as error:
    print(error)
"""
    completed = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=paths())
    assert completed.stdout.startswith(
        "the Ray cluster has no room for 1 processes with 0 CPUs and 99 GPUs in total (PACK; "
    )


@pytest.mark.full
def test_without_ray_the_error_says_how_to_install_it(tmp_path):
    (tmp_path / "ray.py").write_text("raise ImportError")
    script = "from fragmenta.engines.ray_access import slots; slots('auto')"
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    completed = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, env=settings)
    assert completed.stderr.splitlines()[-1].endswith("the ray engine needs Ray: pip install 'fragmenta[ray]'")
