"""Runs the generated source of a kernel on a CPU, compiled by the system's C++ compiler: for tests."""

import ctypes
import functools
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fragmenta.worker.kernels.ir import Kernel
from fragmenta.worker.kernels.source import Shape, Source, source


def compiler() -> str | None:
    """The C++ compiler of this machine."""
    return shutil.which("g++") or shutil.which("clang++")


def emulate(kernel: Kernel, arrays: Sequence[Any], shape: Shape | None = None) -> list[np.ndarray]:
    """The kernel's outputs, then its sums over rows, if it has any."""
    written = source(kernel, shape or Shape(exact=True, blocks=3), emulated=True)
    inputs = [np.ascontiguousarray(array, given.dtype) for array, given in zip(arrays, kernel.inputs, strict=True)]
    outputs = [np.zeros(result.shape, result.dtype) for result in kernel.outputs]
    sums = [np.zeros((written.blocks, kernel.sums), np.float32)] if kernel.sums else []
    buffers = (ctypes.c_void_p * (len(inputs) + len(outputs) + len(sums)))(
        *(array.ctypes.data for array in (*inputs, *outputs, *sums))
    )
    _compiled(written).run_kernel(buffers, written.blocks, written.shared)
    return [*outputs, *(partial.sum(0) for partial in sums)]


@functools.cache
def _compiled(written: Source) -> Any:
    folder = Path(tempfile.gettempdir()) / "fragmenta-emulated-kernels"
    folder.mkdir(exist_ok=True)
    digest = hashlib.sha256(written.text.encode()).hexdigest()[:24]
    library = folder / f"{digest}.so"
    if not library.exists():
        text = folder / f"{digest}.cpp"
        text.write_text(written.text)
        command = [
            compiler() or "g++",
            "-std=c++17",
            "-O1",
            "-fPIC",
            "-shared",
            "-pthread",
            "-w",
            "-D__restrict__=__restrict",
        ]
        partial = library.with_suffix(".partial")
        subprocess.run([*command, "-o", str(partial), str(text)], check=True)
        partial.rename(library)
    return ctypes.CDLL(str(library))
