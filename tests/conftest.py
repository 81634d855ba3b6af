"""Settings for all tests: eight CPU devices, and a compilation cache that persists between runs."""

import fnmatch
import os
from importlib.metadata import version

os.environ.setdefault("JAX_PLATFORMS", "cpu")
flags = os.environ.get("XLA_FLAGS", "")
if "xla_backend_optimization_level=0" in flags and version("jaxlib").startswith("0.10."):
    # As `make test` asks for quick compilation: this halves it once more. Later versions do not know these flags.
    flags += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
os.environ["XLA_FLAGS"] = flags + " --xla_force_host_platform_device_count=8"

import pytest

from fragmenta.engines.hardware import keep_compiled_programs

keep_compiled_programs()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test marked `brief`, `make test` runs only the cases whose ids match its patterns."""
    for item in items:
        brief, case = item.get_closest_marker("brief"), getattr(item, "callspec", None)
        if brief and case and not any(fnmatch.fnmatch(case.id, pattern) for pattern in brief.args):
            item.add_marker(pytest.mark.full)


@pytest.fixture(autouse=True)
def no_thread_left():
    """Fails a test that leaves a worker thread running."""
    import threading

    yield
    leftovers = [t.name for t in threading.enumerate() if t.name.startswith("fragmenta-") and "compile" not in t.name]
    assert not leftovers, f"threads left: {leftovers}"
