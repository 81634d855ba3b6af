"""Values in flight between two iterations, where a fragment works one iteration behind another.

They are saved whole and by name, so that a checkpoint does not depend on the number of replicas.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fragmenta.coordinator.partition.parts import join_parts, parts_of
from fragmenta.graph import Interface, Operator, Plan
from fragmenta.graph.layout import Split
from fragmenta.worker.backends.xla import to_raw
from fragmenta.worker.execute import Worker

InFlight = Mapping[str, np.ndarray]
"""The values that the next iteration will receive, by name."""


def join_in_flight(plan: Plan, workers: Sequence[dict[tuple[int, str], list[Any]]]) -> InFlight:
    """Join the values in flight of all workers, replicas in order; empty before the first iteration."""
    values = {}
    for interface in _lagging(plan):
        parts = [np.array(part) for worker in workers for part in worker.get(interface.key, ())]
        if parts:
            values[_name(plan, interface)] = _join(interface, parts)
    return values


def split_in_flight(plan: Plan, whole: InFlight, worker: Worker) -> dict[tuple[int, str], list[Any]]:
    """One worker's part of the values in flight; check `fits` first."""
    program, values = worker.deployment.schedule.program, {}
    for take in worker.late:
        interface = take.interface
        parts = _split(interface, whole[_name(plan, interface)], len(take.keys) * program.replicas)
        begin = worker.replica * len(take.keys)
        values[interface.key] = parts[begin : begin + len(take.keys)]
    return values


def fits(plan: Plan, whole: InFlight) -> bool:
    """Whether this plan has exactly these values in flight."""
    expected = {_name(plan, interface): interface for interface in _lagging(plan)}
    return expected.keys() == whole.keys() and all(
        _shape(plan, interface) == (whole[name].shape, whole[name].dtype) for name, interface in expected.items()
    )


def _lagging(plan: Plan) -> list[Interface]:
    return [interface for interface in plan.interfaces if interface.delivery.lag]


def _name(plan: Plan, interface: Interface) -> str:
    """Prefer the name of the state's leaf, which is stable across versions of JAX; value ids are not."""
    names = {value.id: name for value, name in zip(plan.graph.state_inputs, plan.graph.state_names, strict=True)}
    value = interface.value.id
    return f"{interface.consumer}/{names.get(value) or f'{interface.name}.{value}'}"


def _join(interface: Interface, parts: list[np.ndarray]) -> np.ndarray:
    if interface.operator == Operator.REDUCE:
        return np.stack(parts)
    layout = _parts(interface)
    return np.asarray(join_parts(parts, layout)) if layout else parts[0]


def _split(interface: Interface, whole: np.ndarray, count: int) -> list[np.ndarray]:
    if interface.operator == Operator.REDUCE:
        return list(whole)
    layout = _parts(interface)
    return parts_of(whole, layout, count) if layout else [whole] * count


def _parts(interface: Interface) -> Split | None:
    """How the value in flight is split: as the producer's or else the consumer's replicas hold it."""
    return next((s for s in (interface.producer_layout, interface.consumer_layout) if isinstance(s, Split)), None)


def _shape(plan: Plan, interface: Interface) -> tuple[tuple[int, ...], Any]:
    value = interface.value
    raw = jax.eval_shape(to_raw, jax.ShapeDtypeStruct(value.shape, value.dtype))
    if interface.operator != Operator.REDUCE:
        return raw.shape, raw.dtype
    parts = 1 if plan[interface.consumer].together else plan[interface.producer].replicas
    return (parts, *raw.shape), raw.dtype
