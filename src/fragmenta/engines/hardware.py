"""What this machine has, and whether JAX uses it."""

import contextlib
import os
from pathlib import Path
from typing import Any

import jax

from fragmenta.engines import EngineOptions
from fragmenta.engines.ray_access import slots
from fragmenta.errors import ConfigError
from fragmenta.policies import Cluster
from fragmenta.worker.backends.xla import device_name
from fragmenta_host.pool import cores


def local_cluster(replicas: int = 1, lag: int = 0, max_lag: int | None = None) -> Cluster:
    """The devices that JAX sees in this process."""
    return Cluster(tuple(device_name(device) for device in jax.devices()), replicas, lag, max_lag)


def engine_cluster(
    engine: str,
    options: EngineOptions,
    replicas: int = 0,
    lag: int = 0,
    max_lag: int | None = None,
    processes: int | None = None,
) -> Cluster:
    """What an engine has to place fragments on: this process' devices, or as many processes as there are cores or GPUs
    on this machine or in the cluster; or `processes`."""
    if engine == "local":
        return local_cluster(replicas, lag, max_lag)
    if processes is not None and processes < 1:
        raise ConfigError(f"cpu_devices is {processes}: it must be at least 1")
    # Several processes may share a GPU; each would take three quarters of its memory for itself at the start.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    kind, count = jax.default_backend(), len(jax.devices())
    if engine == "ray" and options.address:
        nodes = slots(options.address)
        kind = "gpu" if any(node.gpus for node in nodes) else "cpu"
        count = int(sum(node.gpus if kind == "gpu" else node.cpus for node in nodes))
    elif kind == "cpu":
        count = cores()
    if processes is not None:
        kind, count = "cpu", processes
    return Cluster(tuple(f"{kind}:{i}" for i in range(count)), replicas, lag, max_lag, apart=True)


def use_cpu_devices(count: int) -> None:
    """Let JAX show the processor as so many devices; only before it has looked at its devices."""
    if count < 1:
        raise ConfigError(f"cpu_devices is {count}: it must be at least 1")
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError as error:
        raise ConfigError(f"cannot make {count} CPU devices any more: {error}") from error


def ensure_cpu_devices(count: int) -> None:
    """Let the processor count as so many devices, unless somebody has said as how many, or JAX has looked already."""
    said = setting("jax_num_cpu_devices") > 0 or "xla_force_host_platform_device_count" in os.environ.get(
        "XLA_FLAGS", ""
    )
    if not said:
        with contextlib.suppress(ConfigError):
            use_cpu_devices(count)


def idle_gpu() -> str | None:
    """A warning if there is an NVIDIA GPU that JAX does not use though nobody chose another platform, else None."""
    present = any(Path(path).exists() for path in ("/dev/nvidia0", "/proc/driver/nvidia/version"))
    if present and not setting("jax_platforms") and jax.default_backend() == "cpu":
        return "an NVIDIA GPU is here but JAX runs on the CPU: install jax[cuda13]"
    return None


def setting(name: str) -> Any:
    """A configuration value of JAX."""
    return getattr(jax.config, name)


def cache_folder() -> Path:
    """Where compiled programs are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "fragmenta" / "compiled"


def keep_compiled_programs() -> None:
    """Let JAX keep compiled programs between runs, unless the user has configured that already."""
    if setting("jax_compilation_cache_dir") is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
