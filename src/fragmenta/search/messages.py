"""What a sweep and the processes that train its groups send each other: JSON and arrays, nothing that is executed."""

import dataclasses
import io
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fragmenta.runs.checkpoints import Checkpoint
from fragmenta.search.group_training import Contender, GroupResult
from fragmenta.search.groups import TrialGroup
from fragmenta.search.trials import Proposal, Trial, read_trial, read_values

Message = tuple[dict[str, Any], list[np.ndarray]]
STATE, METRICS, SECONDS = "state/", "metrics/", "seconds"


def group_message(group: TrialGroup, saved: Checkpoint | None) -> Message:
    """A group to train, and the checkpoint to continue from."""
    proposals = [dataclasses.asdict(proposal) for proposal in group.proposals]
    message = {"proposals": proposals, "traced": group.traced, "saved": None}
    if saved is None:
        return message, []
    head, arrays = checkpoint_message(saved)
    return message | {"saved": head}, arrays


def read_group(message: dict[str, Any], arrays: Sequence[np.ndarray]) -> tuple[TrialGroup, Checkpoint | None]:
    """The group of a message, and its checkpoint."""
    proposals = tuple(Proposal(p["number"], read_values(p["values"])) for p in message["proposals"])
    traced = message["traced"]
    saved = message["saved"] and read_checkpoint(message["saved"], arrays)
    return TrialGroup(proposals, None if traced is None else tuple(traced)), saved


def checkpoint_message(checkpoint: Checkpoint) -> Message:
    """A checkpoint of a group."""
    head = {"iteration": checkpoint.iteration, "steps": checkpoint.steps, "names": list(checkpoint.arrays)}
    return head, list(checkpoint.arrays.values())


def read_checkpoint(head: dict[str, Any], arrays: Sequence[np.ndarray]) -> Checkpoint:
    """The checkpoint of a message."""
    named = dict(zip(head["names"], arrays, strict=True))
    return Checkpoint(named, head["iteration"], head["steps"])


def result_message(result: GroupResult) -> Message:
    """Finished trials, and the best of them."""
    message: dict[str, Any] = {"trials": [dataclasses.asdict(trial) for trial in result.trials], "candidate": None}
    best = result.candidate
    if best is None:
        return message, []
    named = {STATE + name: array for name, array in best.state.items()}
    named |= {METRICS + name: array for name, array in best.metrics.items()} | {SECONDS: best.seconds}
    head = {"trial": result.trials.index(best.trial), "seed": best.seed, "return_mean": best.return_mean}
    return message | {"candidate": head | {"names": list(named)}}, list(named.values())


def read_result(message: dict[str, Any], arrays: Sequence[np.ndarray]) -> GroupResult:
    """The finished trials of a message, and the best of them."""
    trials: list[Trial] = [read_trial(record) for record in message["trials"]]
    head = message["candidate"]
    if head is None:
        return GroupResult(trials, None)
    named = dict(zip(head["names"], arrays, strict=True))

    def part(prefix: str) -> dict[str, np.ndarray]:
        return {name.removeprefix(prefix): array for name, array in named.items() if name.startswith(prefix)}

    trial = trials[head["trial"]]
    best = Contender(trial, head["seed"], head["return_mean"], part(STATE), part(METRICS), named[SECONDS])
    return GroupResult(trials, best)


def pack_folder(folder: Path) -> np.ndarray:
    """All files of a folder as bytes: the process that wrote it may run on another machine."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(folder, arcname=".")
    return np.frombuffer(archive.getvalue(), np.uint8)


def unpack_folder(packed: np.ndarray, folder: Path) -> None:
    """Write the files of a packed folder; paths that lead outside of it are refused."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(packed.tobytes()), mode="r") as tar:
        tar.extractall(folder, filter="data")
