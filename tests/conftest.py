"""Settings for all tests: eight CPU devices, and a compilation cache that persists between runs."""

import fnmatch
import os

import xla_flags

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = xla_flags.for_tests()

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
