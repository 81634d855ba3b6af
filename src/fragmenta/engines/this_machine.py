"""The machine at hand, described as a file would describe it."""

import functools
import platform
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fragmenta.engines.limits import usable_cores, usable_memory
from fragmenta.policies.machines import MODELS, Device, Link, Machines, Node, cpu_devices

SHARED_MEMORY = Link(6e-5, 4e9)
"""Between processes: half a round trip of 1 KB, and the rate of 16 MB, in the table of docs/channels.md."""
PCIE = Link(1e-5, 16e9)
"""Between accelerators: PCIe 3.0 x16 as published, with an assumed latency. What they are joined by is not asked."""
ROUNDS = 5


def this_machine() -> Machines:
    """One node with the devices that JAX sees here, and the cores and memory that this process may use. The speed of
    the CPU, and of accelerators that `MODELS` lacks, is measured once per process."""
    cores, memory = usable_cores(), usable_memory()
    core, devices = measured_core(cores), jax.local_devices()
    if devices[0].platform == "cpu":
        link, described = SHARED_MEMORY, cpu_devices(len(devices), cores, memory, core)
    else:
        link, described = PCIE, tuple(_accelerator(device, memory) for device in devices)
    return Machines((Node(platform.node(), cores, memory, described, link, core),), link)


@functools.cache
def measured_core(cores: int) -> Device:
    """One of so many cores, from a matrix product and a copy on all of them in NumPy: about a tenth of a second."""
    matrix = np.ones((512, 512), np.float32)
    product = np.empty_like(matrix)
    flops = 2 * 512**3 / _fastest(lambda: np.matmul(matrix, matrix, out=product))
    source = np.ones(2**24, np.float32)
    target = np.empty_like(source)
    parts = list(zip(np.array_split(target, cores), np.array_split(source, cores), strict=True))
    with ThreadPoolExecutor(cores) as pool:  # one thread does not use all of the memory's bandwidth
        copy_seconds = _fastest(lambda: list(pool.map(lambda part: np.copyto(*part), parts)))
    copied = 2 * source.nbytes  # every byte is read and written
    return Device("cpu", "measured core", usable_memory() // cores, flops / cores, copied / copy_seconds / cores)


def known_model(device_kind: str) -> Device | None:
    """The model in `MODELS` that JAX calls so, as in `NVIDIA H100 80GB HBM3`."""
    return next((device for model, device in MODELS.items() if re.search(rf"\b{model}\b", device_kind)), None)


@functools.cache
def measured_rates(device_kind: str) -> tuple[float, float]:
    """Operations and bytes per second of the first device that JAX calls so."""
    device = next(device for device in jax.local_devices() if device.device_kind == device_kind)
    matrix = jax.device_put(np.ones((2048, 2048), np.float32), device)
    values = jax.device_put(np.ones(2**26, np.float32), device)
    product = jax.jit(lambda a: jnp.matmul(a, a, precision="highest"))  # else GPUs round inputs to fewer bits
    copy = jax.jit(lambda a: a + 1)
    product_seconds = _fastest(lambda: product(matrix).block_until_ready())
    copy_seconds = _fastest(lambda: copy(values).block_until_ready())
    return 2 * 2048**3 / product_seconds, 2 * values.nbytes / copy_seconds


def _accelerator(device: Any, host_memory: int) -> Device:
    """A device of JAX; the memory is what JAX reserves of it, by default three quarters on a GPU."""
    known = known_model(device.device_kind)
    limit = (device.memory_stats() or {}).get("bytes_limit")
    memory = limit or (known.memory if known else host_memory)
    flops, bandwidth = (known.flops, known.bandwidth) if known else measured_rates(device.device_kind)
    return Device(device.platform, known.model if known else device.device_kind, memory, flops, bandwidth)


def _fastest(run: Callable[[], Any]) -> float:
    """The seconds of the fastest of several calls, after one that is not counted: it starts threads or compiles."""
    run()
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
