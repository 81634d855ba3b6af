"""Checkpoints: the full state of a run, one folder each, written atomically and verified before use.

A folder has `state` (the arrays, in Orbax's format; a large one has a file of its own instead), `manifest.json` (their
names, shapes and types in order, and size and checksum of every file) and `manifest.sha256`. It is written under a
temporary name, flushed to disk and renamed, so that a run killed at any time leaves either a complete checkpoint or
none. Loading executes nothing: no pickle. Why each is kept is in `kept.json` beside them, because it may change after a
checkpoint was written.
"""

import dataclasses
import errno
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fragmenta.errors import ConfigError
from fragmenta.runs.checkpoint_files import (
    files_below,
    flush,
    flush_folder,
    is_large,
    read_arrays,
    read_large,
    size_and_checksum,
    write_arrays,
)
from fragmenta.runs.remarks import remark
from fragmenta.runs.run_directory import write_whole

SCHEMA = 1
CHECKPOINTS = "checkpoints"
"""The folder within a run directory."""
IN_FLIGHT = "in_flight/"
"""Prefix for the names of values in flight, among the arrays of a checkpoint."""
SPARE_BYTES = 100_000
"""Disk space reserved for the manifest and metadata."""
NAME = re.compile(r"\d{10}")
KEPT = "kept.json"
"""The file beside the checkpoints: for each by its name, whether it is among the latest, its score and the measure."""
EPISODES, EVALUATION = "episodes", "evaluation"
"""What a score measures: the mean return of the latest episodes in training, or of an evaluation, which takes
precedence."""
MEASURES = {
    EPISODES: "the mean return of the latest episodes in training",
    EVALUATION: "the mean return of its evaluation",
}


class DamagedError(Exception):
    """A checkpoint that must not be used; the message says what is wrong."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The state of a run after some iterations: arrays by name, independent of placement."""

    arrays: dict[str, np.ndarray]
    iteration: int
    steps: int
    score: float | None = None
    """The mean return that decides which checkpoint is the best; None if it is not known."""
    measure: str = EPISODES
    """What the score measures."""
    in_flight: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """Values in flight to fragments that work one iteration behind; empty if there are none."""


@dataclasses.dataclass(frozen=True)
class Best:
    """The best checkpoint of a run, and what chose it."""

    iteration: int
    score: float
    measure: str

    def __str__(self) -> str:
        return f"the best checkpoint is {self.iteration}, by {MEASURES[self.measure]}, {self.score:,.1f}"


class CheckpointFolder:
    """The checkpoints of a run; keeps the latest few and the best one."""

    def __init__(self, path: Path, keep_last: int = 3, keep_best: bool = True) -> None:
        self.path, self._keep_last, self._keep_best = path, keep_last, keep_best

    def save(self, checkpoint: Checkpoint, is_latest: bool = True) -> Path:
        """Write a checkpoint durably to disk and delete those no longer needed; OSError if that fails.

        One that is not among the latest is kept only as long as it is the best.
        """
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
        files = write_arrays(temporary, arrays)
        descriptions = {n: {"shape": list(a.shape), "dtype": str(a.dtype)} for n, a in arrays.items()}
        for path in files_below(temporary):
            if (file := str(path.relative_to(temporary))) not in files:
                files[file] = size_and_checksum(path)
        manifest = {
            "schema": SCHEMA,
            "iteration": checkpoint.iteration,
            "steps": checkpoint.steps,
            "arrays": descriptions,
            "files": files,
        }
        text = json.dumps(manifest, indent=1).encode()
        (temporary / "manifest.json").write_bytes(text)
        (temporary / "manifest.sha256").write_text(hashlib.sha256(text).hexdigest() + "\n")
        flush(temporary)
        if final.exists():  # damaged, so the run was resumed from an older one
            self._remove(final)
        os.rename(temporary, final)
        flush_folder(self.path)
        self._write_kept(self._kept() | {name: _reason(checkpoint, is_latest)})
        self._delete_old()
        return final

    def keep(self, checkpoint: Checkpoint, is_latest: bool) -> bool:
        """Keep a checkpoint that is on disk for one more reason; False if it is not there."""
        name, kept = f"{checkpoint.iteration:010d}", self._kept()
        if name not in self.names() or name not in kept:
            return False
        reason = _reason(checkpoint, is_latest or kept[name]["is_latest"])
        if checkpoint.score is None:
            reason |= {"score": kept[name]["score"], "measure": kept[name]["measure"]}
        self._write_kept(kept | {name: reason})
        self._delete_old()
        return True

    def names(self) -> list[str]:
        """Names of all checkpoints, oldest first, damaged ones included."""
        if not self.path.is_dir():
            return []
        return sorted(path.name for path in self.path.iterdir() if NAME.fullmatch(path.name))

    def load(self, name: str) -> Checkpoint:
        """Load a checkpoint; DamagedError unless every file matches its checksum."""
        manifest = self.manifest(name)
        folder = self.path / name
        large: dict[str, np.ndarray] = {}
        for file, expected in manifest["files"].items():
            if ".." in Path(file).parts or Path(file).is_absolute():
                raise DamagedError(f"it names a file outside its folder, {file}")
            try:
                if is_large(file):
                    actual, large[file] = read_large(folder / file)
                else:
                    actual = size_and_checksum(folder / file)
            except OSError as error:
                raise DamagedError(f"{file} cannot be read: {error.strerror}") from None
            if actual != expected:
                raise DamagedError(f"{file} does not match its checksum")
        arrays = read_arrays(folder, manifest["arrays"], large)
        prefixed = {name: arrays.pop(name) for name in list(arrays) if name.startswith(IN_FLIGHT)}
        in_flight = {name.removeprefix(IN_FLIGHT): array for name, array in prefixed.items()}
        return Checkpoint(arrays, manifest["iteration"], manifest["steps"], in_flight=in_flight)

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

    def newest(self) -> Checkpoint:
        """The latest intact checkpoint; a remark says which one it is if a later one is damaged."""
        damaged: list[str] = []
        for name in reversed(self.names()):
            try:
                checkpoint = self.load(name)
            except DamagedError as damage:
                damaged.append(f"{self.path / name} is damaged ({damage})")
                continue
            if damaged:
                remark(f"checkpoint {checkpoint.iteration} is used, because {' and '.join(damaged)}")
            return checkpoint
        raise ConfigError(f"'{self.path}' has no intact checkpoint: start a new run")

    def chosen(self, which: str) -> Checkpoint:
        """The checkpoint `best`, `last`, or of an iteration; ConfigError if there is none."""
        if which == "last":
            return self.newest()
        name = f"{int(which):010d}" if which.isdecimal() else which
        if which == "best" and (best := self.best()):
            name = f"{best.iteration:010d}"
            print(f"fragmenta: {best}", file=sys.stderr)
        if name not in self.names():
            present = ", ".join(str(int(name)) for name in self.names()) or "none yet"
            reason = "none has a return so far" if which == "best" else f"existing ones: {present}"
            raise ConfigError(
                f"'{self.path}' has no checkpoint '{which}' ({reason}): choose best, last or an existing iteration"
            )
        try:
            return self.load(name)
        except DamagedError as damage:
            raise ConfigError(f"checkpoint '{self.path / name}' is damaged ({damage}): choose another") from None

    def best(self) -> "Best | None":
        """The best checkpoint, by evaluation if one was evaluated; None if none has a score."""
        kept, candidates = self._kept(), list[Best]()
        for name in self.names():
            reason = kept.get(name)
            if reason and reason["score"] is not None and self._is_intact(name):
                candidates.append(Best(int(name), reason["score"], reason["measure"]))
        return max(candidates, key=lambda best: (best.measure == EVALUATION, best.score), default=None)

    def discard_after(self, iteration: int) -> None:
        """Delete the checkpoints of later iterations."""
        for name in self.names():
            if int(name) > iteration:
                self._remove(self.path / name)

    def _delete_old(self) -> None:
        names, kept = self.names(), self._kept()
        latest = [name for name in names if name not in kept or kept[name]["is_latest"]]
        retained = set(latest[-self._keep_last :])
        if self._keep_best and (best := self.best()):
            retained.add(f"{best.iteration:010d}")
        for name in set(names) - retained:
            self._remove(self.path / name)

    def _is_intact(self, name: str) -> bool:
        try:
            self.manifest(name)
        except DamagedError:
            return False
        return True

    def _kept(self) -> dict[str, dict[str, Any]]:
        """Why checkpoints are kept; one that is not in the file, or without a file all, are among the latest."""
        try:
            content = json.loads((self.path / KEPT).read_text())
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def _write_kept(self, kept: dict[str, dict[str, Any]]) -> None:
        present = {name: reason for name, reason in sorted(kept.items()) if (self.path / name).exists()}
        write_whole(self.path / KEPT, (json.dumps(present, indent=1) + "\n").encode())

    def _remove(self, path: Path) -> None:
        """Never leaves a partial checkpoint under its name."""
        hidden = path.with_name(f".{path.name}.old")
        os.rename(path, hidden)
        shutil.rmtree(hidden)


def _reason(checkpoint: Checkpoint, is_latest: bool) -> dict[str, Any]:
    return {"is_latest": is_latest, "score": checkpoint.score, "measure": checkpoint.measure}
