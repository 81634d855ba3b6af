"""The newest values of state leaves, in the midst of an iteration: the state itself may be given away to a stage."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fragmenta.graph import Call, Compute, Program
from fragmenta.worker.steps import Key

POLL_SECONDS = 0.001
"""How often to look again for leaves whose memory is given away."""


def newest(program: Program, values: Mapping[Key, Any], leaves: Sequence[int]) -> dict[int, Any] | None:
    """The newest of these leaves whose memory is not given away, of each field of the state from one moment; None if
    some have no such values."""
    fields: dict[str, list[int]] = {}
    for i in sorted(set(leaves) & set(program.state)):
        fields.setdefault(program.graph.state_names[i].partition(".")[0], []).append(i)
    result: dict[int, Any] = {}
    for field in fields.values():
        for version in reversed(_versions(program, field)):
            arrays = [values.get(key) for key in version]
            if all(array is not None and not array.is_deleted() for array in arrays):
                result |= dict(zip(field, arrays, strict=True))
                break
        else:
            return None
    return result


def copies_of(
    find: Callable[[], dict[int, Any] | None], lock: threading.Lock, seconds: float
) -> dict[int, np.ndarray] | None:
    """Copies in host memory of the arrays that `find` returns under the lock; None if it finds none for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with lock:
            if (arrays := find()) is not None:
                return {i: np.array(array) for i, array in arrays.items()}
        time.sleep(POLL_SECONDS)
    return None


def _versions(program: Program, leaves: Sequence[int]) -> list[tuple[int, ...]]:
    """The ids of the values that these leaves have in an iteration, one after another: at first, whenever a stage takes
    all of them, in order, as other stages have changed them, and at the end."""
    inputs = [program.graph.state_inputs[i] for i in leaves]
    types = [(value.shape, value.dtype) for value in inputs]
    versions = [tuple(value.id for value in inputs)]
    changed: set[int] = set()
    for instruction in program.instructions:
        if not isinstance(instruction, Compute) or not isinstance(instruction.node, Call):
            continue
        call = instruction.node
        for start in range(len(call.inputs) - len(leaves) + 1):
            run = call.inputs[start : start + len(leaves)]
            ids = tuple(value.id for value in run)
            if [(value.shape, value.dtype) for value in run] != types or not set(ids) <= changed | set(versions[-1]):
                continue
            if ids != versions[-1]:
                versions.append(ids)
            changed |= {value.id for value in call.outputs}
            break
    return [*versions, tuple(program.graph.state_outputs[i].id for i in leaves)]
