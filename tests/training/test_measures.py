"""Measurements of a run: speed, memory, utilisation."""

import subprocess
import sys
from typing import Any

from fragmenta.engines.local import IterationReport
from fragmenta.training.measures import Measures, memory


def report(iteration: int, **changes: Any) -> IterationReport:
    shares: dict[str, Any] = {"busy": {"all": 0.5}, "fill": {"a -> b": 0.25}}
    return IterationReport(iteration, **({"metrics": {}, "lag": None, "source": None, "dropped": 0} | shares | changes))


def test_speed_is_of_the_last_second_and_overall() -> None:
    measures = Measures()
    for i in range(10):  # 100 steps every 0.1 s
        measures.of(report(i), 100 * (i + 1), 0.1 * (i + 1))
    record = [measures.of(report(10 + i), 1_000 + 10 * (i + 1), 1.0 + 0.1 * (i + 1)) for i in range(20)][-1]
    assert round(record["steps_per_second"]) == 100
    assert round(record["steps_per_second_overall"]) == 400
    assert record["busy/all"] == 0.5
    assert record["fill/a -> b"] == 0.25
    assert "lag" not in record


def test_memory_is_sampled_once_per_second() -> None:
    measures = Measures()
    sampled = ["memory_mb" in measures.of(report(i), i, 0.25 * (i + 1)) for i in range(9)]
    assert sampled == [True, False, False, False, True, False, False, False, True]


def test_memory_includes_child_processes() -> None:
    before = memory()["memory_mb"]
    waste = "import sys; kept = bytearray(200_000_000); print(len(kept), flush=True); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", waste], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdout.readline()
        assert memory()["memory_mb"] > before + 150
    finally:
        child.communicate()
