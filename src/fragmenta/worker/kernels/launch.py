"""Calls kernels from programs that XLA compiles for an NVIDIA GPU."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fragmenta.worker.kernels.ir import Kernel, RowLoop, all_ops
from fragmenta.worker.kernels.nvrtc import ptx
from fragmenta.worker.kernels.rewrite import Call, Prepare
from fragmenta.worker.kernels.source import Shape, source

TARGET = "__gpu$xla.gpu.ptx"
"""The call of XLA that runs a kernel given as PTX."""

BLOCKS_TRIED = (2, 3)
"""Blocks per multiprocessor that are compared, for kernels with sums over rows."""


@dataclasses.dataclass(frozen=True)
class CudaLaunch:
    """Kernels for devices of one compute capability, with so many multiprocessors."""

    capability: str
    processors: int
    cache: Path | None
    shape: Shape | None = None
    """How all kernels are launched, instead of how `usual_shape` says."""

    def __call__(self, kernel: Kernel) -> Call:
        """The compiled kernel."""
        written = source(kernel, self.shape or usual_shape(kernel, self.processors))
        text = ptx(written.text, self.capability, self.cache)
        shapes = list(kernel.outputs)
        if kernel.sums:
            shapes.append(jax.ShapeDtypeStruct((written.blocks, kernel.sums), jnp.float32))
        sizes = {"grid": written.blocks, "block": written.threads}
        attributes = {f"{what}_{d}": np.int32(n if d == "x" else 1) for what, n in sizes.items() for d in "xyz"}
        attributes |= {"name": written.name, "kernel_type": "ptx", "kernel_data": text}
        attributes["shared_mem_bytes"] = np.int32(written.shared)

        def call(arrays: Sequence[Any]) -> list[Any]:
            results = list(jax.ffi.ffi_call(TARGET, shapes)(*arrays, **attributes))
            # Every block has its own sums: added up in one order, so that the result is the same from run to run.
            return [*results[:-1], jnp.sum(results[-1], axis=0)] if kernel.sums else results

        return call

    def ways(self, kernels: Sequence[Kernel]) -> dict[str, Prepare]:
        """Launches of kernels that may be the fastest: how many blocks share a multiprocessor decides how many
        registers a lane has."""
        if not any(kernel.sums for kernel in kernels):
            return {"usual": self}
        shapes = {f"{n} blocks": Shape(blocks=n * self.processors, resident=n) for n in BLOCKS_TRIED}
        return {name: dataclasses.replace(self, shape=shape) for name, shape in shapes.items()}


def usual_shape(kernel: Kernel, processors: int) -> Shape:
    """How a kernel is launched: loops over few rows with a warp per block, so that all multiprocessors have some."""
    if any(isinstance(op, RowLoop) for op in all_ops(kernel.body)):
        warps = 1
        while warps < 4 and kernel.rows > 2 * 16 * warps * processors:
            warps *= 2
        return Shape(warps=warps)
    blocks = 3 if kernel.sums else 4
    return Shape(blocks=blocks * processors, resident=blocks)
