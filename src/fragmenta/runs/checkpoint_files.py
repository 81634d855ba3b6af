"""The files within a checkpoint: arrays in Orbax's format, checksums, and flushing to disk."""

import functools
import hashlib
import logging
import math
import os
from pathlib import Path
from typing import Any

import numpy as np

CHUNK_BYTES = 1 << 24
LARGE_BYTES = 1 << 20
"""Arrays from this size on, such as those of a replay, have a file of their own, which needs no copy of them and is
neither read to compute its checksum nor read twice to load it."""
NOTHING = b"\0"
"""In place of small arrays if there are none: Orbax refuses an empty array."""


def write_arrays(folder: Path, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Write arrays in the order of the manifest, small ones concatenated, because many small ones take Orbax twice as
    long; returns size and checksum of the files of large arrays, by name, computed while they were written."""
    files = {
        _file_of_large(position): _write_large(folder / _file_of_large(position), array)
        for position, array in enumerate(arrays.values())
        if array.nbytes >= LARGE_BYTES
    }
    joined = b"".join(array.tobytes() for array in arrays.values() if array.nbytes < LARGE_BYTES) or NOTHING
    try:
        _orbax().save((folder / "state").absolute(), {"bytes": np.frombuffer(joined, np.uint8)})
        _orbax().wait_until_finished()
    except ValueError as error:  # TensorStore reports disk errors as ValueError
        raise OSError(str(error).partition("\n")[0]) from error
    return files


def read_arrays(folder: Path, descriptions: dict[str, Any], large: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Read arrays that have these names, shapes and types, in this order; `large` has the bytes of those with a file of
    their own, by its name."""
    types = {name: (tuple(a["shape"]), np.dtype(a["dtype"])) for name, a in descriptions.items()}
    sizes = {name: math.prod(shape) * dtype.itemsize for name, (shape, dtype) in types.items()}
    files = {name: _file_of_large(position) for position, name in enumerate(types)}
    size = sum(size for name, size in sizes.items() if files[name] not in large)
    target = {"bytes": np.empty(size or len(NOTHING), np.uint8)}
    joined = np.asarray(_orbax().restore((folder / "state").absolute(), target)["bytes"])
    arrays, start = {}, 0
    for name, (shape, dtype) in types.items():
        if files[name] in large:
            arrays[name] = large[files[name]].view(dtype).reshape(shape)
            continue
        arrays[name] = joined[start : start + sizes[name]].view(dtype).reshape(shape)
        start += sizes[name]
    return arrays


def is_large(file: str) -> bool:
    """Whether a file of a checkpoint, by its name, has one large array."""
    return file.startswith("array-")


def read_large(path: Path) -> tuple[dict[str, Any], np.ndarray]:
    """Size and checksum of a file, and its bytes, read once; OSError if it cannot be read."""
    checksum = hashlib.sha256()
    with path.open("rb") as file:
        data = np.empty(os.fstat(file.fileno()).st_size, np.uint8)
        start = 0
        while count := file.readinto(data[start : start + CHUNK_BYTES].data):
            checksum.update(data[start : start + count].data)
            start += count
    return {"bytes": start, "sha256": checksum.hexdigest()}, data


def _file_of_large(position: int) -> str:
    return f"array-{position}"


def _write_large(path: Path, array: np.ndarray) -> dict[str, Any]:
    data, checksum = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, hashlib.sha256()
    with path.open("wb") as file:
        for start in range(0, len(data), CHUNK_BYTES):
            file.write(data[start : start + CHUNK_BYTES])
            checksum.update(data[start : start + CHUNK_BYTES])
    return {"bytes": len(data), "sha256": checksum.hexdigest()}


@functools.cache
def _orbax() -> Any:
    import orbax.checkpoint as ocp  # slow to import, and most commands do not need it

    # OCDBT is for many small arrays. After each save Orbax looks for its files with `glob`, which never finds them in a
    # path with brackets, and leaves an unreadable checkpoint; without OCDBT there are none, of which it warns.
    logging.getLogger("absl").addFilter(lambda record: "Skipping merge of OCDBT" not in record.getMessage())
    return ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False))


def files_below(folder: Path) -> list[Path]:
    """All files in a folder and its folders."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def size_and_checksum(path: Path) -> dict[str, Any]:
    """Size and checksum of a file; OSError if it cannot be read."""
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def flush(folder: Path) -> None:
    """Flush everything below a folder to disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        else:
            flush_folder(path)
    flush_folder(folder)


def flush_folder(folder: Path) -> None:
    """Flush the list of the files in a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
