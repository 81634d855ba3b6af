"""Kernels run without a GPU: interpreted, or their generated source compiled for the CPU."""

import dataclasses
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fragmenta.worker.backends.kernel import launcher_for, use_kernels
from fragmenta.worker.backends.xla import device_name, site
from fragmenta.worker.kernels.emulate import compiler, emulate
from fragmenta.worker.kernels.interpret import interpret
from fragmenta.worker.kernels.ir import Kernel
from fragmenta.worker.kernels.rewrite import Call, Prepare
from fragmenta.worker.kernels.source import Shape

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")

ON_GPU = "cuda" in os.environ.get("JAX_PLATFORMS", "")
WAYS = [
    pytest.param("interpreted"),
    pytest.param("emulated", marks=needs_compiler),
    *([pytest.param("gpu")] if ON_GPU else []),
]


def launcher(way: str, shape: Shape | None = None) -> Prepare:
    """Calls kernels in one of these ways."""
    if way == "gpu":
        use_kernels(True)
        calls = launcher_for(site((device_name(jax.devices("gpu")[0]),)))
        assert calls
        return dataclasses.replace(calls, shape=shape or Shape(exact=True))

    def prepare(kernel: Kernel) -> Call:
        results = list(kernel.outputs)
        if kernel.sums:
            results.append(jax.ShapeDtypeStruct((kernel.sums,), jnp.float32))

        def run(*given: Any) -> list[np.ndarray]:
            held = [np.asarray(x) for x in given]
            return interpret(kernel, held) if way == "interpreted" else emulate(kernel, held, shape)

        return lambda arrays: jax.pure_callback(run, results, *arrays)

    return prepare
