"""Every algorithm is short, and none knows where it runs."""

import re
from pathlib import Path

import pytest

import fragmenta.algorithms

FILES = sorted(Path(fragmenta.algorithms.__file__).parent.glob("*.py"))
PLACES = ("device", "gpu", "cpu", "process", "processes", "replica", "channel", "shard", "worker", "machine", "central")
"""Words for where something runs; the axes of an image may be called channels, but not here."""


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_algorithm_is_at_most_200_lines_of_mathematics(file: Path) -> None:
    text = file.read_text()
    assert len(text.splitlines()) <= 200
    words = set(re.findall(r"[a-z]+", text.lower()))
    assert not words & {form for word in PLACES for form in (word, f"{word}s")}
