"""Values on their way between two iterations, where a fragment works one iteration behind another.

In the form that is saved they are whole and have names, so that they do not depend on the number of replicas.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fragmenta.coordinator.partition.parts import joined, parts_of
from fragmenta.graph import Interface, Operator, Plan
from fragmenta.graph.layout import Split
from fragmenta.worker.backends.xla import to_raw
from fragmenta.worker.execute import Worker

InFlight = Mapping[str, np.ndarray]
"""By name: what the next iteration will take."""


def join_in_flight(plan: Plan, held: Sequence[dict[tuple[int, str], list[Any]]]) -> InFlight:
    """What all workers together hold, replicas in order; empty before the first iteration."""
    found = {}
    for interface in _lagging(plan):
        parts = [np.array(part) for one in held for part in one.get(interface.key, ())]
        if parts:
            found[_name(plan, interface)] = _join(interface, parts)
    return found


def split_in_flight(plan: Plan, whole: InFlight, worker: Worker) -> dict[tuple[int, str], list[Any]]:
    """What one worker gets of it; `fits` must have said that it can."""
    program, found = worker.deployment.schedule.program, {}
    for take in worker.late:
        interface = take.interface
        parts = _split(interface, whole[_name(plan, interface)], len(take.keys) * program.replicas)
        begin = worker.replica * len(take.keys)
        found[interface.key] = parts[begin : begin + len(take.keys)]
    return found


def fits(plan: Plan, whole: InFlight) -> bool:
    """Whether this plan takes exactly these values, one iteration behind."""
    expected = {_name(plan, interface): interface for interface in _lagging(plan)}
    return expected.keys() == whole.keys() and all(
        _shape(plan, interface) == (whole[name].shape, whole[name].dtype) for name, interface in expected.items()
    )


def _lagging(plan: Plan) -> list[Interface]:
    return [interface for interface in plan.interfaces if interface.delivery.lag]


def _name(plan: Plan, interface: Interface) -> str:
    """That of the leaf of the state, which stays the same from one version of JAX to the next; numbers do not."""
    names = {value.id: name for value, name in zip(plan.graph.state_inputs, plan.graph.state_names, strict=True)}
    value = interface.value.id
    return f"{interface.consumer}/{names.get(value) or f'{interface.name}.{value}'}"


def _join(interface: Interface, parts: list[np.ndarray]) -> np.ndarray:
    if interface.operator == Operator.REDUCE:
        return np.stack(parts)
    layout = _parts(interface)
    return np.asarray(joined(parts, layout)) if layout else parts[0]


def _split(interface: Interface, whole: np.ndarray, count: int) -> list[np.ndarray]:
    if interface.operator == Operator.REDUCE:
        return list(whole)
    layout = _parts(interface)
    return parts_of(whole, layout, count) if layout else [whole] * count


def _parts(interface: Interface) -> Split | None:
    """How what is on its way is cut: as replicas of the one side or of the other hold it."""
    return next((s for s in (interface.held, interface.wanted) if isinstance(s, Split)), None)


def _shape(plan: Plan, interface: Interface) -> tuple[tuple[int, ...], Any]:
    value = interface.value
    raw = jax.eval_shape(to_raw, jax.ShapeDtypeStruct(value.shape, value.dtype))
    if interface.operator != Operator.REDUCE:
        return raw.shape, raw.dtype
    parts = 1 if plan[interface.consumer].together else plan[interface.producer].replicas
    return (parts, *raw.shape), raw.dtype
