"""The hardware of this machine, and JAX settings for it."""

import contextlib
import os
from pathlib import Path
from typing import Any

import jax

from fragmenta.errors import ConfigError
from fragmenta.policies import Cluster
from fragmenta.worker.backends.xla import device_name


def local_cluster(replicas: int = 1, lag: int = 0, max_lag: int | None = None) -> Cluster:
    """The devices that JAX sees in this process."""
    return Cluster(tuple(device_name(device) for device in jax.devices()), replicas, lag, max_lag)


def use_cpu_devices(count: int) -> None:
    """Make JAX expose `count` CPU devices; only before JAX is initialised."""
    if count < 1:
        raise ConfigError(f"cpu_devices is {count}: it must be at least 1")
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError as error:
        raise ConfigError(f"cannot create {count} CPU devices: {error}") from error


def ensure_cpu_devices(count: int) -> None:
    """Make JAX expose `count` CPU devices, unless the number is configured already or JAX is initialised."""
    configured = setting("jax_num_cpu_devices") > 0 or "xla_force_host_platform_device_count" in os.environ.get(
        "XLA_FLAGS", ""
    )
    if not configured:
        with contextlib.suppress(ConfigError):
            use_cpu_devices(count)


def idle_gpu() -> str | None:
    """A warning if there is an NVIDIA GPU that JAX does not use although no platform was chosen, else None."""
    present = any(Path(path).exists() for path in ("/dev/nvidia0", "/proc/driver/nvidia/version"))
    if present and not setting("jax_platforms") and jax.default_backend() == "cpu":
        return "this machine has an NVIDIA GPU, but JAX runs on the CPU: install jax[cuda13]"
    return None


def setting(name: str) -> Any:
    """A configuration value of JAX."""
    return getattr(jax.config, name)


def cache_folder() -> Path:
    """The folder of JAX's compilation cache."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "fragmenta" / "compiled"


def keep_compiled_programs() -> None:
    """Enable JAX's persistent compilation cache, unless the user has configured it."""
    if setting("jax_compilation_cache_dir") is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
