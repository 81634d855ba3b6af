"""`fragmenta doctor`: show the hardware and software of this machine, and whether JAX uses it."""

import dataclasses
import os
import platform
from importlib.metadata import version

import jax

import fragmenta
from fragmenta.cli.arguments import read_flags
from fragmenta.engines.hardware import cache_folder, idle_gpu, keep_compiled_programs, setting
from fragmenta.worker.backends.kernel import obstacle
from fragmenta.worker.backends.xla import device_name
from fragmenta.worker.kernels import nvrtc


@dataclasses.dataclass(frozen=True)
class DoctorOptions:
    """Show the hardware and software of this machine, and whether JAX uses it."""


def run(arguments: list[str]) -> int:
    """Print versions, devices and folders; exit code 1 if something needs fixing."""
    read_flags("doctor", DoctorOptions, arguments)
    keep_compiled_programs()
    packages = ", ".join(f"{name} {version(name)}" for name in ("jax", "jaxlib", "flax", "optax", "numpy"))
    devices = ", ".join(f"{device_name(device)} ({device.device_kind})" for device in jax.devices())
    folder = cache_folder()
    cached = sum(1 for _ in folder.iterdir()) if folder.exists() else 0
    warning = idle_gpu()
    rows = {
        "fragmenta": f"{fragmenta.__version__} on Python {platform.python_version()}",
        "packages": packages,
        "processor": f"{os.cpu_count()} cores",
        "devices": devices,
        "kernels": obstacle(jax.devices()[0]) or f"possible with --kernels on, compiled by NVRTC {nvrtc.version()}",
        "random numbers": setting("jax_default_prng_impl"),
        "compiled programs": f"{setting('jax_compilation_cache_dir')} ({cached} files)",
        "verdict": warning or "all is well",
    }
    width = max(map(len, rows))
    for name, text in rows.items():
        print(f"{name.ljust(width)}  {text}")
    return 1 if warning else 0
