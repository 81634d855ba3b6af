"""Checkpoints: the full state of a run, one folder each, written atomically and verified before use.

A folder has `state` (all arrays, in Orbax's format), `manifest.json` (their names, shapes and types in order, and size
and checksum of every file) and `manifest.sha256`. It is written under a temporary name, flushed to disk and renamed, so
that a run killed at any time leaves either a complete checkpoint or none. Loading executes nothing: no pickle.
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
"""The folder within a run directory."""
IN_FLIGHT = "in_flight/"
"""Prefix for the names of values in flight, among the arrays of a checkpoint."""
SPARE_BYTES = 100_000
"""Disk space reserved for the manifest and metadata."""
NAME = re.compile(r"\d{10}")


class DamagedError(Exception):
    """A checkpoint that must not be used; the message says what is wrong."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The state of a run after some iterations: arrays by name, independent of placement."""

    arrays: dict[str, np.ndarray]
    iteration: int
    steps: int
    score: float | None = None
    """Mean return of the latest episodes, which decides which checkpoint is the best."""
    in_flight: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """Values in flight to fragments that work one iteration behind; empty if there are none."""


class CheckpointFolder:
    """The checkpoints of a run; keeps the latest few and the best one."""

    def __init__(self, path: Path, keep_last: int = 3, keep_best: bool = True) -> None:
        self.path, self._keep_last, self._keep_best = path, keep_last, keep_best

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint durably to disk and delete those no longer needed; OSError if that fails."""
        self.path.mkdir(parents=True, exist_ok=True)
        for leftover in self.path.glob(".*"):  # of a run that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        name = f"{checkpoint.iteration:010d}"
        temporary, final = self.path / f".{name}", self.path / name
        arrays = checkpoint.arrays | {IN_FLIGHT + name: array for name, array in checkpoint.in_flight.items()}
        needed = SPARE_BYTES + 2 * sum(array.nbytes for array in arrays.values())
        if shutil.disk_usage(self.path).free < needed:  # a write failing halfway prints many errors
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        temporary.mkdir()
        _write(temporary / "state", arrays)
        descriptions = {n: {"shape": list(a.shape), "dtype": str(a.dtype)} for n, a in arrays.items()}
        files = {str(path.relative_to(temporary)): _fingerprint(path) for path in _files(temporary)}
        manifest = {
            "schema": SCHEMA,
            "iteration": checkpoint.iteration,
            "steps": checkpoint.steps,
            "score": checkpoint.score,
            "arrays": descriptions,
            "files": files,
        }
        text = json.dumps(manifest, indent=1).encode()
        (temporary / "manifest.json").write_bytes(text)
        (temporary / "manifest.sha256").write_text(hashlib.sha256(text).hexdigest() + "\n")
        _flush(temporary)
        if final.exists():  # damaged, so the run was resumed from an older one
            self._remove(final)
        os.rename(temporary, final)
        _flush_folder(self.path)
        self._delete_old()
        return final

    def names(self) -> list[str]:
        """Names of all checkpoints, oldest first, damaged ones included."""
        if not self.path.is_dir():
            return []
        return sorted(path.name for path in self.path.iterdir() if NAME.fullmatch(path.name))

    def load(self, name: str) -> Checkpoint:
        """Load a checkpoint; DamagedError unless every file matches its checksum."""
        manifest = self.manifest(name)
        folder = self.path / name
        for file, expected in manifest["files"].items():
            if ".." in Path(file).parts or Path(file).is_absolute():
                raise DamagedError(f"it names a file outside its folder, {file}")
            try:
                fingerprint = _fingerprint(folder / file)
            except OSError as error:
                raise DamagedError(f"{file} cannot be read: {error.strerror}") from None
            if fingerprint != expected:
                raise DamagedError(f"{file} does not match its checksum")
        arrays = _read(folder / "state", manifest["arrays"])
        prefixed = {name: arrays.pop(name) for name in list(arrays) if name.startswith(IN_FLIGHT)}
        in_flight = {name.removeprefix(IN_FLIGHT): array for name, array in prefixed.items()}
        return Checkpoint(arrays, manifest["iteration"], manifest["steps"], manifest["score"], in_flight)

    def manifest(self, name: str) -> dict[str, Any]:
        """The manifest of a checkpoint; DamagedError if it was changed."""
        try:
            text = (self.path / name / "manifest.json").read_bytes()
            checksum = (self.path / name / "manifest.sha256").read_bytes()
        except OSError as error:
            raise DamagedError(f"{Path(error.filename).name} cannot be read: {error.strerror}") from None
        if checksum != hashlib.sha256(text).hexdigest().encode() + b"\n":
            raise DamagedError("manifest.json does not match its checksum")
        manifest = json.loads(text)
        if manifest["schema"] != SCHEMA:
            raise DamagedError(f"it has schema {manifest['schema']}, but this version reads {SCHEMA}")
        return manifest

    def newest(self, warn: Any = print) -> Checkpoint:
        """The latest intact checkpoint; warns about damaged ones."""
        for name in reversed(self.names()):
            try:
                return self.load(name)
            except DamagedError as damage:
                warn(f"fragmenta: checkpoint {self.path / name} is damaged ({damage}): using the one before it")
        raise ConfigError(f"'{self.path}' has no intact checkpoint: start a new run")

    def chosen(self, which: str) -> Checkpoint:
        """The checkpoint `best`, `last`, or of an iteration; ConfigError if there is none."""
        if which == "last":
            return self.newest()
        name = f"{int(which):010d}" if which.isdecimal() else which
        if which == "best":
            name, _ = self.best()
        if name not in self.names():
            present = ", ".join(str(int(name)) for name in self.names()) or "none yet"
            reason = "no episode has ended" if which == "best" else f"there are: {present}"
            raise ConfigError(
                f"'{self.path}' has no checkpoint '{which}' ({reason}): choose best, last or an iteration of these"
            )
        try:
            return self.load(name)
        except DamagedError as damage:
            raise ConfigError(f"checkpoint '{self.path / name}' is damaged ({damage}): choose another") from None

    def best(self) -> tuple[str, float]:
        """The name and the score of the best checkpoint; no name if none has a score."""
        scores = {name: score for name in self.names() if (score := self._score(name)) is not None}
        name = max(scores, key=lambda name: scores[name], default="")
        return name, scores.get(name, -math.inf)

    def discard_after(self, iteration: int) -> None:
        """Delete the checkpoints of later iterations."""
        for name in self.names():
            if int(name) > iteration:
                self._remove(self.path / name)

    def _delete_old(self) -> None:
        names = self.names()
        retained = set(names[-self._keep_last :])
        if self._keep_best:
            retained.add(self.best()[0])
        for name in set(names) - retained:
            self._remove(self.path / name)

    def _score(self, name: str) -> float | None:
        try:
            return self.manifest(name)["score"]
        except DamagedError:
            return None

    def _remove(self, path: Path) -> None:
        """Never leaves a partial checkpoint under its name."""
        hidden = path.with_name(f".{path.name}.old")
        os.rename(path, hidden)
        shutil.rmtree(hidden)


def _write(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    """Concatenate all arrays in the order of the manifest: many small ones take Orbax twice as long."""
    joined = b"".join(array.tobytes() for array in arrays.values())
    try:
        _orbax().save(folder.absolute(), {"bytes": np.frombuffer(joined, np.uint8)})
        _orbax().wait_until_finished()
    except ValueError as error:  # TensorStore reports disk errors as ValueError
        raise OSError(str(error).partition("\n")[0]) from error


def _read(folder: Path, descriptions: dict[str, Any]) -> dict[str, np.ndarray]:
    types = {name: (tuple(a["shape"]), np.dtype(a["dtype"])) for name, a in descriptions.items()}
    sizes = {name: math.prod(shape) * dtype.itemsize for name, (shape, dtype) in types.items()}
    target = {"bytes": np.empty(sum(sizes.values()), np.uint8)}
    joined = np.asarray(_orbax().restore(folder.absolute(), target)["bytes"])
    arrays, start = {}, 0
    for name, (shape, dtype) in types.items():
        arrays[name] = joined[start : start + sizes[name]].view(dtype).reshape(shape)
        start += sizes[name]
    return arrays


@functools.cache
def _orbax() -> Any:
    import orbax.checkpoint as ocp  # slow to import, and most commands do not need it

    return ocp.StandardCheckpointer()


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _fingerprint(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _flush(folder: Path) -> None:
    """Flush everything below a folder to disk."""
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
