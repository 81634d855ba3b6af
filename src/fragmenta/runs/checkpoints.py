"""Checkpoints: the whole state of a run, one folder each, written whole or not at all and checked before it is used.

A folder has `state` (all arrays, in Orbax's format), `manifest.json` (their names, shapes and types in order, and size
and checksum of every file) and `manifest.sha256`. It is written under another name, flushed to the disk and renamed, so
that a run that is killed at any time leaves either a whole checkpoint or none. Nothing in it is executed: no pickle.
"""

import dataclasses
import errno
import functools
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fragmenta.errors import ConfigError

SCHEMA = 1
CHECKPOINTS = "checkpoints"
"""The folder of a run directory that has them."""
IN_FLIGHT = "in_flight/"
"""What the names of such values begin with, among the arrays of a checkpoint."""
SPARE_BYTES = 100_000
"""Room for what describes the arrays."""
NAME = re.compile(r"\d{10}")


class DamagedError(Exception):
    """A checkpoint that must not be used; says what is wrong with it."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The state of a run after some iterations: arrays by name, in the form that does not depend on placement."""

    arrays: dict[str, np.ndarray]
    iteration: int
    steps: int
    score: float | None = None
    """Mean return of the latest episodes, by which the best one is kept."""
    in_flight: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """Values on their way to fragments that work one iteration behind; empty where none does."""


class CheckpointFolder:
    """The checkpoints of a run: the latest few and the best one stay."""

    def __init__(self, path: Path, keep_last: int = 3, keep_best: bool = True) -> None:
        self.path, self._keep_last, self._keep_best = path, keep_last, keep_best

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write one; afterwards it is on the disk, and those that are no longer wanted are gone; OSError if not."""
        self.path.mkdir(parents=True, exist_ok=True)
        for left in self.path.glob(".*"):  # by a run that was killed
            shutil.rmtree(left, ignore_errors=True)
        name = f"{checkpoint.iteration:010d}"
        temporary, final = self.path / f".{name}", self.path / name
        arrays = checkpoint.arrays | {IN_FLIGHT + name: array for name, array in checkpoint.in_flight.items()}
        needed = SPARE_BYTES + 2 * sum(array.nbytes for array in arrays.values())
        if shutil.disk_usage(self.path).free < needed:  # a write that fails halfway is reported by many, in many lines
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        temporary.mkdir()
        _write(temporary / "state", arrays)
        described = {n: {"shape": list(a.shape), "dtype": str(a.dtype)} for n, a in arrays.items()}
        files = {str(path.relative_to(temporary)): _fingerprint(path) for path in _files(temporary)}
        manifest = {
            "schema": SCHEMA,
            "iteration": checkpoint.iteration,
            "steps": checkpoint.steps,
            "score": checkpoint.score,
            "arrays": described,
            "files": files,
        }
        text = json.dumps(manifest, indent=1).encode()
        (temporary / "manifest.json").write_bytes(text)
        (temporary / "manifest.sha256").write_text(hashlib.sha256(text).hexdigest() + "\n")
        _flush(temporary)
        if final.exists():  # of a run that went on from an older one after this one was found damaged
            self._remove(final)
        os.rename(temporary, final)
        _flush_folder(self.path)
        self._forget()
        return final

    def names(self) -> list[str]:
        """All of them, oldest first, whole or not."""
        if not self.path.is_dir():
            return []
        return sorted(path.name for path in self.path.iterdir() if NAME.fullmatch(path.name))

    def load(self, name: str) -> Checkpoint:
        """Read one back; DamagedError unless every file is what was written."""
        manifest = self.manifest(name)
        folder = self.path / name
        for file, expected in manifest["files"].items():
            if ".." in Path(file).parts or Path(file).is_absolute():
                raise DamagedError(f"it names a file outside, {file}")
            try:
                found = _fingerprint(folder / file)
            except OSError as error:
                raise DamagedError(f"{file} cannot be read: {error.strerror}") from None
            if found != expected:
                raise DamagedError(f"{file} is not what was written")
        arrays = _read(folder / "state", manifest["arrays"])
        late = {name: arrays.pop(name) for name in list(arrays) if name.startswith(IN_FLIGHT)}
        in_flight = {name.removeprefix(IN_FLIGHT): array for name, array in late.items()}
        return Checkpoint(arrays, manifest["iteration"], manifest["steps"], manifest["score"], in_flight)

    def manifest(self, name: str) -> dict[str, Any]:
        """What a checkpoint says that it is; DamagedError if that was changed."""
        try:
            text = (self.path / name / "manifest.json").read_bytes()
            checksum = (self.path / name / "manifest.sha256").read_bytes()
        except OSError as error:
            raise DamagedError(f"{Path(error.filename).name} cannot be read: {error.strerror}") from None
        if checksum != hashlib.sha256(text).hexdigest().encode() + b"\n":
            raise DamagedError("manifest.json is not what was written")
        manifest = json.loads(text)
        if manifest["schema"] != SCHEMA:
            raise DamagedError(f"it has schema {manifest['schema']}, and this version reads {SCHEMA}")
        return manifest

    def newest(self, warn: Any = print) -> Checkpoint:
        """The latest one that is whole; says which were not."""
        for name in reversed(self.names()):
            try:
                return self.load(name)
            except DamagedError as damage:
                warn(f"fragmenta: checkpoint {self.path / name} is damaged ({damage}): the one before it is used")
        raise ConfigError(f"'{self.path}' has no checkpoint that is whole: start the run anew")

    def _forget(self) -> None:
        names = self.names()
        kept = set(names[-self._keep_last :])
        if self._keep_best:
            scores = {name: self._score(name) for name in names}
            best = max((n for n in names if scores[n] is not None), key=lambda n: scores[n] or 0.0, default=None)
            kept |= {best} - {None}
        for name in set(names) - kept:
            self._remove(self.path / name)

    def _score(self, name: str) -> float | None:
        try:
            return self.manifest(name)["score"]
        except DamagedError:
            return None

    def _remove(self, path: Path) -> None:
        """Never leaves half of one under its name."""
        hidden = path.with_name(f".{path.name}.old")
        os.rename(path, hidden)
        shutil.rmtree(hidden)


def _write(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    """All arrays in one, end to end in the order of the manifest: many small ones take Orbax twice as long."""
    joined = b"".join(array.tobytes() for array in arrays.values())
    try:
        _orbax().save(folder.absolute(), {"bytes": np.frombuffer(joined, np.uint8)})
        _orbax().wait_until_finished()
    except ValueError as error:  # as which TensorStore reports whatever the disk does
        raise OSError(str(error).partition("\n")[0]) from error


def _read(folder: Path, described: dict[str, Any]) -> dict[str, np.ndarray]:
    kinds = {name: (tuple(a["shape"]), np.dtype(a["dtype"])) for name, a in described.items()}
    sizes = {name: math.prod(shape) * dtype.itemsize for name, (shape, dtype) in kinds.items()}
    target = {"bytes": np.empty(sum(sizes.values()), np.uint8)}
    joined = np.asarray(_orbax().restore(folder.absolute(), target)["bytes"]).tobytes()
    arrays, start = {}, 0
    for name, (shape, dtype) in kinds.items():
        arrays[name] = np.frombuffer(joined[start : start + sizes[name]], dtype).reshape(shape)
        start += sizes[name]
    return arrays


@functools.cache
def _orbax() -> Any:
    import orbax.checkpoint as ocp  # slow to import, and most commands need none of it

    return ocp.StandardCheckpointer()


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _fingerprint(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _flush(folder: Path) -> None:
    """Have everything below a folder on the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        else:
            _flush_folder(path)
    _flush_folder(folder)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
