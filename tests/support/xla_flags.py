"""The flags of XLA for tests."""

import os
from importlib.metadata import version

QUICK = "--xla_cpu_parallel_codegen_split_count=1"
"""Less work for the compiler, with the same rounding. Later versions do not know this flag."""


def for_tests() -> str:
    """The caller's flags, eight CPU devices, and quick compilation if the caller asks for it, as `make test` does."""
    asked = os.environ.get("XLA_FLAGS", "")
    quick = "xla_backend_optimization_level=0" in asked and version("jaxlib").startswith("0.10.")
    return " ".join([asked, QUICK if quick else "", "--xla_force_host_platform_device_count=8"])
