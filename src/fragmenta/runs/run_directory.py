"""The directory of a run: its files are readable without Fragmenta."""

import functools
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save

from fragmenta.errors import ConfigError
from fragmenta.tracing.names import leaf_name

EVALUATIONS = "evaluations.jsonl"
"""The file in a run directory with a record per evaluation."""
VIDEOS = "videos"
"""The folder in a run directory with videos of evaluations."""


class RunDirectory:
    """The directory with `config.json`, `metrics.jsonl`, `graph.mmd`, `checkpoints`, `params.safetensors`,
    `summary.json`."""

    def __init__(self, path: Path, earlier: Sequence[dict[str, Any]] = ()) -> None:
        self.path, self.earlier = path, tuple(earlier)
        """The directory, and the records of iterations before this start."""

    @staticmethod
    def new(path: Path) -> "RunDirectory":
        """Create the directory; it must not exist yet."""
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise ConfigError(f"run directory '{path}' exists: choose another, or remove it") from None
        except OSError as error:
            raise ConfigError(f"cannot create run directory '{path}': {error.strerror}") from None
        return RunDirectory(path)

    @staticmethod
    def reopened(path: Path, iteration: int) -> "RunDirectory":
        """Reopen an earlier run's directory to continue at `iteration`: removes later records, later evaluations during
        training, and final results."""
        file = path / "metrics.jsonl"
        if iteration and not file.exists():
            raise ConfigError(f"'{file}' is missing: restore it from a backup, or train again")
        earlier = read_records(file) if file.exists() else []
        records = [record for record in earlier if record["iteration"] < iteration]
        directory = RunDirectory(path, records)
        directory.write_text("metrics.jsonl", _lines(records))
        if (path / EVALUATIONS).exists():
            evaluations = read_records(path / EVALUATIONS)
            earlier_ones = [record for record in evaluations if record.get("iteration", 0) <= iteration]
            directory.write_text(EVALUATIONS, _lines(earlier_ones))
        for name in ("params.safetensors", "summary.json"):
            (path / name).unlink(missing_ok=True)
        return directory

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Write a small document."""
        self.write_text(name, json.dumps(content, indent=2, default=str) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a text file."""
        write_whole(self.path / name, text.encode())

    def write_params(self, params: Any) -> None:
        """Write parameters by name."""
        write_whole(self.path / "params.safetensors", save(named_arrays(params)))


def _lines(records: Sequence[dict[str, Any]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def read_config(path: Path) -> dict[str, Any]:
    """The content of `config.json` in a run directory; ConfigError if this is not one."""
    if not path.is_dir():
        raise ConfigError(
            f"there is no run directory '{path}': give one that `fragmenta train` printed, as in runs/NAME"
        )
    config = read_json(path / "config.json")
    if config is None:
        raise ConfigError(f"'{path}' has no config.json: it is not a run directory")
    return config


def read_json(path: Path) -> Any:
    """The content of a JSON file; None if it does not exist, ConfigError if it cannot be read."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read '{path}': {' '.join(str(error).split())}; restore it from a backup") from None


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of a JSON lines file; a truncated last line, as after a kill, is ignored."""
    lines = path.read_text(errors="replace").splitlines()
    records = [_parsed(line) for line in lines]
    for number, record in enumerate(records[:-1], start=1):
        if record is None:
            raise ConfigError(f"line {number} of '{path}' is not a record with steps: remove that line")
    return [record for record in records if record is not None]


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("steps"), int) else None


class StoredRecords(Sequence[dict[str, Any]]):
    """The records of a run from some iteration on, read from its file on first access: a long run has too many to hold
    in memory while it trains."""

    def __init__(self, path: Path, first: int) -> None:
        self._path, self._first = path, first

    @functools.cached_property
    def _records(self) -> list[dict[str, Any]]:
        return read_records(self._path)[self._first :]

    def __getitem__(self, index: Any) -> Any:
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)


def named_arrays(tree: Any) -> dict[str, np.ndarray]:
    """Every leaf of a tree by its path, as in `policy.params.Dense_0.kernel`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {leaf_name(path): np.asarray(jax.device_get(leaf), order="C") for path, leaf in leaves}


def sha256(tree: Any) -> str:
    """A fingerprint of names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name, array in sorted(named_arrays(tree).items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
