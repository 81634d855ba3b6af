"""Large arrays of a checkpoint: a file of their own, written and read once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fragmenta.runs import checkpoint_files
from fragmenta.runs.checkpoints import Checkpoint, CheckpointFolder, DamagedError

ARRAYS = {
    "small": np.arange(5, dtype=np.int32),
    "large": np.arange(1 << 18, dtype=np.float32).reshape(512, 512),
    "frames": np.arange(2 << 20, dtype=np.uint8)[::2],
}


def saved(folder: Path) -> CheckpointFolder:
    checkpoints = CheckpointFolder(folder)
    checkpoints.save(Checkpoint(ARRAYS, 1, 10))
    return checkpoints


def test_large_arrays_are_read_once_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = saved(tmp_path)
    opened: list[str] = []
    original = Path.open

    def noted(path: Path, *args: Any, **kwargs: Any) -> Any:
        opened.append(path.name)
        return original(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", noted)
    loaded = checkpoints.load("0000000001").arrays
    assert [name for name in opened if name.startswith("array-")] == ["array-1", "array-2"]
    assert list(loaded) == list(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(loaded[name], array)
        assert loaded[name].dtype == array.dtype


def test_a_damaged_large_array_is_noticed(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path)
    path = tmp_path / "0000000001" / "array-2"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedError, match="array-2 does not match its checksum"):
        checkpoints.load("0000000001")


def test_it_does_not_matter_what_counted_as_large_when_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_files, "LARGE_BYTES", 1 << 40)
    checkpoints = saved(tmp_path)
    monkeypatch.undo()
    np.testing.assert_array_equal(checkpoints.load("0000000001").arrays["large"], ARRAYS["large"])
