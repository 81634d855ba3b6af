"""What a run leaves behind: one directory, readable without this program."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save_file

from fragmenta.errors import ConfigError


class RunDirectory:
    """A directory with `config.json`, `metrics.jsonl`, `graph.mmd`, `params.safetensors`, `summary.json` and
    `checkpoints`; a new one."""

    def __init__(self, path: Path) -> None:
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise ConfigError(f"run directory '{path}' exists: choose another, or remove it") from None
        except OSError as error:
            raise ConfigError(f"cannot make run directory '{path}': {error.strerror}") from None
        self.path = path
        self.earlier: list[dict[str, Any]] = []
        """Records of iterations before this start."""

    @classmethod
    def reopen(cls, path: Path, iteration: int) -> "RunDirectory":
        """The directory of an earlier run, to go on after so many iterations; records of later ones are dropped."""
        directory = cls.__new__(cls)
        directory.path, directory.earlier = path, [r for r in read_records(path) if r["iteration"] < iteration]
        directory.write_text("metrics.jsonl", "".join(json.dumps(record) + "\n" for record in directory.earlier))
        return directory

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Write a small document, whole or not at all."""
        self.write_text(name, json.dumps(content, indent=2, default=str) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a text file, whole or not at all."""
        temporary = self.path / f".{name}.tmp"
        temporary.write_text(text)
        os.replace(temporary, self.path / name)

    def write_params(self, params: Any) -> None:
        """Write parameters by name."""
        temporary = self.path / ".params.tmp"
        save_file(named_arrays(params), temporary)
        os.replace(temporary, self.path / "params.safetensors")


def read_records(path: Path) -> list[dict[str, Any]]:
    """A run's records; a last line that was cut off as the run was killed does not count."""
    records = []
    for line in (path / "metrics.jsonl").read_text().splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records


def named_arrays(tree: Any) -> dict[str, np.ndarray]:
    """Every leaf of a tree by its path, as in `policy.params.Dense_0.kernel`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {leaf_name(path): np.asarray(jax.device_get(leaf), order="C") for path, leaf in leaves}


def leaf_name(path: Any) -> str:
    """The name under which a leaf at that path of a tree is kept."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def sha256(tree: Any) -> str:
    """A fingerprint of names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name, array in sorted(named_arrays(tree).items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
