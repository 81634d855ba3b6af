"""Settings for all tests: eight CPU devices, strict types, compiled programs kept between runs."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import jax
import pytest

from fragmenta.training.hardware import keep_compiled_programs

jax.config.update("jax_numpy_dtype_promotion", "standard")
keep_compiled_programs()


@pytest.fixture(autouse=True)
def no_thread_left():
    """Every test must end all workers that it started."""
    import threading

    yield
    left = [t.name for t in threading.enumerate() if t.name.startswith("fragmenta-") and "compile" not in t.name]
    assert not left, f"threads left: {left}"
