"""The way into Ray: a cluster with a token that is asked for, or a Ray of our own that only this machine reaches."""

import functools
import gc
import math
import os
import secrets
import socket
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fragmenta.errors import ConfigError

STORE_BYTES = 80 * 2**20
"""Memory for the object store of a Ray of our own: nothing large goes through it."""

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
    """A node of a cluster: its id, the address and name of its machine, and what it has."""

    node: str
    address: str
    host: str
    cpus: float
    gpus: float


def connect(address: str | None, cpus: float = 0) -> Any:
    """The module `ray`, connected to the cluster at `address` (host:port, or auto), or to a Ray of our own with `cpus`.

    A cluster is refused before anything starts unless it asks for a token and accepts ours.
    """
    if address is not None:
        return _with_code(_join(address), address)
    ray = _import(own=True)
    with warnings.catch_warnings():
        # JAX warns of forks; those of Ray become other programs at once.
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        started = ray.init(
            address="local",  # else Ray joins another one that it finds on this machine
            num_cpus=max(1, math.ceil(cpus)),
            include_dashboard=False,
            object_store_memory=STORE_BYTES,
            **QUIET,
        )
    if started.address_info["node_ip_address"] != "127.0.0.1":
        leave(ray)
        raise ConfigError(
            "Ray would listen beyond this machine, because it was imported before fragmenta could tell it not to: "
            "do not import ray, or set RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0"
        )
    return ray


def leave(ray: Any) -> None:
    """Disconnect, and end a Ray that was started here.

    While Ray shuts down, the end of any of its references ends the whole process with exit code 1. No thread may
    find one among its garbage meanwhile.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        ray.shutdown()
    finally:
        if collects:
            gc.enable()


def slots(address: str) -> list[Slot]:
    """What the cluster at `address` has, node by node."""
    ray = _join(address)
    try:
        return nodes(ray)
    finally:
        leave(ray)


def nodes(ray: Any) -> list[Slot]:
    """The nodes that are alive in the cluster that `ray` is connected to."""
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
    """Settings of processes on the nodes, and where they find modules if all nodes are on this machine.

    Elsewhere they find those of the folder that the command was run in, which is copied as they join (`connect`).
    """
    settings = {name: value for name, value in os.environ.items() if name.startswith(("JAX_", "XLA_"))}
    if not _elsewhere(ray):
        settings["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return {"env_vars": settings}


def _elsewhere(ray: Any) -> bool:
    """Whether any node is on another machine."""
    return any(slot.host != socket.gethostname() for slot in nodes(ray))


def _join(address: str) -> Any:
    ray = _import(own=False)
    _check_token(address)
    ray.init(address=address, **QUIET)
    return ray


def _with_code(ray: Any, address: str) -> Any:
    """Ray, connected so that nodes on other machines get a copy of the folder that the command was run in."""
    if not _elsewhere(ray):
        return ray
    leave(ray)  # it copies a folder as a job begins, never later
    folder = {"working_dir": os.getcwd(), "excludes": ["/runs"]}
    try:
        ray.init(address=address, runtime_env=folder, **QUIET)
    except (ValueError, ray.exceptions.RuntimeEnvSetupError) as error:
        why = str(error).strip().splitlines()[-1]
        raise ConfigError(
            f"Ray cannot copy the folder '{os.getcwd()}' to the other machines ({why}): run this in a folder that has "
            f"your modules and little else, or name what to leave out in its .rayignore"
        ) from None
    return ray


def _import(own: bool) -> Any:
    """Ray, with the settings that it reads as it is imported."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_AUTH_MODE"] = "token"
    if own:
        # Says that Ray is for one machine: then all of it binds to 127.0.0.1. Else all of it listens on every address.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        # Other users of this machine reach 127.0.0.1 as well.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        import ray
    except ImportError:
        raise ConfigError("the ray engine needs Ray: pip install 'fragmenta[ray]'") from None
    if ray.is_initialized():
        raise ConfigError("this process is connected to Ray already: call ray.shutdown() first")
    # Ray prints the logs of dead nodes to standard output, which is for scripts; `ended` says it in one line.
    module: Any = ray
    module._private.worker.print_to_stdstream = lambda *_, **__: None
    return module


@functools.cache  # asking takes seconds, and a run asks what there is before it joins
def _check_token(address: str) -> None:
    """Refuse a cluster that lets in those without a token, or that does not let us in."""
    if not _has_token():
        raise ConfigError(f"no token was found here for the Ray cluster at {address}: {TOKEN_HELP}")
    _check_answers(address)
    (without_token, _), (with_token, said) = _ask(address, "disabled", "token")
    if without_token:
        raise ConfigError(f"the Ray cluster at {address} runs the code of anybody who reaches it: {TOKEN_HELP}")
    if not with_token and "InvalidAuthToken" in said:
        raise ConfigError(f"the Ray cluster at {address} does not accept the token found here: {TOKEN_HELP}")
    if not with_token:
        raise ConfigError(_NO_ANSWER.format(address))


def _has_token() -> bool:
    """Whether there is a token where Ray looks for it; without one its client does not refuse, it crashes."""
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    file = Path(named) if named else Path.home() / ".ray" / "auth_token"
    return bool(os.environ.get("RAY_AUTH_TOKEN")) or file.is_file()


def _check_answers(address: str) -> None:
    """Refuse an address where nothing listens: Ray itself would try for a minute."""
    if address == "auto":  # Ray looks for one on this machine
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(
            f"'{address}' is no address of a Ray cluster: expected host:port (as in 10.0.0.1:6379), or auto"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWERING_SECONDS).close()
    except OSError:
        raise ConfigError(_NO_ANSWER.format(address)) from None


def _ask(address: str, *modes: str) -> list[tuple[bool, str]]:
    """For each mode of authentication, whether the cluster lets in one who has it, and what was said."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--skip-version-check"]
    command += [] if address == "auto" else ["--address", address]
    asked = [
        subprocess.Popen(
            command,
            env={**os.environ, "RAY_AUTH_MODE": mode},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for mode in modes
    ]
    said = [process.communicate()[0] for process in asked]
    return [(process.returncode == 0, words) for process, words in zip(asked, said, strict=True)]
