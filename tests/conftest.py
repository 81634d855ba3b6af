"""Settings for all tests: eight CPU devices, and a compilation cache that persists between runs."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import pytest

from fragmenta.engines.hardware import keep_compiled_programs

keep_compiled_programs()


@pytest.fixture(autouse=True)
def no_thread_left():
    """Fails a test that leaves a worker thread running."""
    import threading

    yield
    leftovers = [t.name for t in threading.enumerate() if t.name.startswith("fragmenta-") and "compile" not in t.name]
    assert not leftovers, f"threads left: {leftovers}"
