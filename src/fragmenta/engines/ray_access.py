"""Connects to Ray: to a cluster with token authentication, or to a new Ray that only this machine can reach."""

import contextlib
import functools
import gc
import math
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fragmenta.errors import ConfigError

STORE_BYTES = 80 * 2**20
"""Object store memory of a Ray that we start: nothing large goes through it."""

ANSWERING_SECONDS = 10.0
"""How long a cluster may take to accept a connection."""

QUIET: dict[str, Any] = {"configure_logging": False, "logging_level": "error", "log_to_driver": False}

_NO_ANSWER = "no Ray cluster answers at {}: check the address (host:port), or run `ray start --head`"

TOKEN_HELP = (
    "start Ray on every machine with RAY_AUTH_MODE=token and the same token, made once by `ray get-auth-token "
    "--generate`, in ~/.ray/auth_token or RAY_AUTH_TOKEN, and have it here too"
)


@dataclass(frozen=True)
class Slot:
    """A node of a cluster: its id, the address and name of its machine, and its resources."""

    node: str
    address: str
    host: str
    cpus: float
    gpus: float


def connect(address: str | None, cpus: float = 0) -> Any:
    """The module `ray`, connected to the cluster at `address` (host:port, or auto), or to a new Ray with `cpus`.

    Before anything starts, a cluster is rejected unless it requires a token and accepts ours.
    """
    if address is not None:
        return _with_code(_join(address), address)
    ray = _import(private=True)
    with _keeping_handlers(), warnings.catch_warnings():
        # JAX warns about forks; those of Ray call exec at once.
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        started = ray.init(
            address="local",  # else Ray joins a cluster that it finds on this machine
            num_cpus=max(1, math.ceil(cpus)),
            include_dashboard=False,
            object_store_memory=STORE_BYTES,
            **QUIET,
        )
    if started.address_info["node_ip_address"] != "127.0.0.1":
        leave(ray)
        raise ConfigError(
            "Ray would listen on the network, because it was imported before fragmenta could configure it: "
            "do not import ray, or set RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0"
        )
    return ray


@contextlib.contextmanager
def _keeping_handlers() -> Iterator[None]:
    """Keep our signal handlers: Ray sets its own, which aborts the process on SIGTERM."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)


def leave(ray: Any) -> None:
    """Disconnect, and stop a Ray that was started here.

    If an object reference is freed while Ray shuts down, the whole process exits with code 1. The garbage collector is
    therefore off meanwhile.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        ray.shutdown()
    finally:
        if collects:
            gc.enable()


def slots(address: str) -> list[Slot]:
    """The nodes of the cluster at `address`, with their resources."""
    ray = _join(address)
    try:
        return nodes(ray)
    finally:
        leave(ray)


def nodes(ray: Any) -> list[Slot]:
    """The live nodes of the cluster that `ray` is connected to."""
    return [
        Slot(
            node["NodeID"],
            node["NodeManagerAddress"],
            node["NodeManagerHostname"],
            node["Resources"].get("CPU", 0),
            node["Resources"].get("GPU", 0),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def code(ray: Any) -> dict[str, Any]:
    """The runtime environment of processes on nodes: settings, and the module path if all nodes are on this machine.

    Other machines get a copy of the current working directory instead (`connect`).
    """
    settings = {name: value for name, value in os.environ.items() if name.startswith(("JAX_", "XLA_"))}
    if not _spans_machines(ray):
        settings["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return {"env_vars": settings}


def _spans_machines(ray: Any) -> bool:
    """Whether any node is on another machine."""
    return any(slot.host != socket.gethostname() for slot in nodes(ray))


def _join(address: str) -> Any:
    ray = _import(private=False)
    _check_token(address)
    with _keeping_handlers():
        ray.init(address=address, **QUIET)
    return ray


def _with_code(ray: Any, address: str) -> Any:
    """Ray, reconnected if needed so that nodes on other machines get a copy of the current working directory."""
    if not _spans_machines(ray):
        return ray
    leave(ray)  # Ray copies a folder only when a job starts
    folder = {"working_dir": os.getcwd(), "excludes": ["/runs"]}
    try:
        with _keeping_handlers():
            ray.init(address=address, runtime_env=folder, **QUIET)
    except (ValueError, ray.exceptions.RuntimeEnvSetupError) as error:
        why = str(error).strip().splitlines()[-1]
        raise ConfigError(
            f"Ray cannot copy the folder '{os.getcwd()}' to the other machines ({why}): run this in a folder with "
            f"only your modules, or list what to exclude in its .rayignore"
        ) from None
    return ray


def _import(private: bool) -> Any:
    """Import Ray with the settings that it reads on import."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_AUTH_MODE"] = "token"
    if private:
        # Declares a single-machine Ray, which binds to 127.0.0.1. Otherwise it listens on every address.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        # Other users of this machine can reach 127.0.0.1 as well.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        import ray
    except ImportError:
        raise ConfigError("the ray engine needs Ray: pip install 'fragmenta[ray]'") from None
    if ray.is_initialized():
        raise ConfigError("this process is already connected to Ray: call ray.shutdown() first")
    # Ray prints the logs of dead nodes to standard output, which is for scripts; `ended` reports the loss in one line.
    module: Any = ray
    module._private.worker.print_to_stdstream = lambda *_, **__: None
    return module


@functools.cache  # the check takes seconds, and a run lists the nodes before it joins
def _check_token(address: str) -> None:
    """Reject a cluster that accepts clients without a token, or that rejects our token."""
    if not _has_token():
        raise ConfigError(f"no token was found here for the Ray cluster at {address}: {TOKEN_HELP}")
    _check_answers(address)
    (without_token, _), (with_token, output) = _health_checks(address, "disabled", "token")
    if without_token:
        raise ConfigError(f"the Ray cluster at {address} runs code from anyone who can reach it: {TOKEN_HELP}")
    if not with_token and "InvalidAuthToken" in output:
        raise ConfigError(f"the Ray cluster at {address} does not accept the token found here: {TOKEN_HELP}")
    if not with_token:
        raise ConfigError(_NO_ANSWER.format(address))


def _has_token() -> bool:
    """Whether there is a token where Ray looks for it; without one, Ray's client crashes."""
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    file = Path(named) if named else Path.home() / ".ray" / "auth_token"
    return bool(os.environ.get("RAY_AUTH_TOKEN")) or file.is_file()


def _check_answers(address: str) -> None:
    """Reject an address where nothing listens: Ray itself would retry for a minute."""
    if address == "auto":  # Ray looks for a cluster on this machine
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(
            f"'{address}' is not the address of a Ray cluster: expected host:port (as in 10.0.0.1:6379), or auto"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWERING_SECONDS).close()
    except OSError:
        raise ConfigError(_NO_ANSWER.format(address)) from None


def _health_checks(address: str, *modes: str) -> list[tuple[bool, str]]:
    """For each authentication mode, whether the cluster accepts it, and the output of the health check."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--skip-version-check"]
    command += [] if address == "auto" else ["--address", address]
    processes = [
        subprocess.Popen(
            command,
            env={**os.environ, "RAY_AUTH_MODE": mode},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for mode in modes
    ]
    outputs = [process.communicate()[0] for process in processes]
    return [(process.returncode == 0, output) for process, output in zip(processes, outputs, strict=True)]
