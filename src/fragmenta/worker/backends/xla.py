"""Compiles segments with XLA, for one device or for merged replicas over several devices."""

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from fragmenta.coordinator.partition.parts import folded_shape
from fragmenta.errors import ConfigError, unknown
from fragmenta.graph.layout import PARTIAL, WHOLE, Layout, Split
from fragmenta.tracing.jaxprs import key_dtype, key_generator
from fragmenta.worker.backends.collectives import compile_with_collectives
from fragmenta.worker.backends.unrolling import UNROLL
from fragmenta.worker.steps import REPLICA, Key, Schedule, Segment


@dataclasses.dataclass(frozen=True)
class Site:
    """Where a worker computes: one device, or one device for each of the replicas along `axis` that it merges."""

    devices: tuple[Any, ...]
    together: int = 1
    axis: str = ""
    members: tuple[Any, ...] = ()
    """The devices of all replicas along `axis`, where they exchange values across processes."""

    @property
    def platform(self) -> str:
        """`cpu`, `gpu` or `tpu`."""
        return self.devices[0].platform

    @property
    def unroll(self) -> int:
        """Unroll factor of compiled loops over stages."""
        return UNROLL.get(self.platform, 1)

    def sharding(self, shape: tuple[int, ...], axis: int | None) -> Any:
        """The sharding of an array, given the dimension that is split across replicas."""
        if len(self.devices) == 1:
            return SingleDeviceSharding(self.devices[0])
        names = [None] * len(shape)
        if axis is not None:
            names[axis] = self.axis  # pyright: ignore[reportArgumentType, reportCallIssue]
        return NamedSharding(self._mesh, PartitionSpec(*names))

    def _spec(self, axis: int | None) -> PartitionSpec:
        return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, self.axis)

    @property
    def _mesh(self) -> Mesh:
        return Mesh(np.array(self.devices), (self.axis,))

    def spmd(self, function: Callable, inputs: list[int | None], outputs: list[int | None]) -> Callable:
        """Lift a per-replica function to one of all merged replicas, whose arrays hold the parts of all of them."""
        if self.together == 1:
            return function
        if len(self.devices) == 1:
            return _vmapped(function, self.axis, self.together, inputs, outputs)
        specs = [tuple(self._spec(axis) for axis in axes) for axes in (inputs, outputs)]
        return jax.shard_map(function, mesh=self._mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False)


def site(names: tuple[str, ...], axis: str | None = None) -> Site:
    """The devices of these names; with an `axis`, the replicas along it run merged there."""
    devices = {device_name(device): device for device in (*jax.devices(), *host_devices())}
    for name in names:
        if name not in devices:
            hint = "" if host_devices() else "; JAX has no CPU device: add cpu to JAX_PLATFORMS"
            raise unknown("device", name, devices, hint)
    distinct = tuple(dict.fromkeys(names))
    if axis and len(distinct) not in (1, len(names)):
        raise ConfigError(
            f"{len(names)} replicas that exchange values are on {len(distinct)} devices ({', '.join(distinct)}): "
            f"give each replica its own device, or put all of them on one"
        )
    return Site(tuple(devices[name] for name in distinct), len(names) if axis else 1, axis or "")


def host_devices() -> list[Any]:
    """The CPU devices of this process, also beside accelerators; none if JAX_PLATFORMS leaves them out."""
    try:
        return jax.devices("cpu")
    except RuntimeError:
        return []


def device_name(device: Any) -> str:
    """A device's name in distribution policies, such as `cpu:0`."""
    return f"{device.platform}:{device.id}"


def spec_of(schedule: Schedule, where: Site, key: Key) -> jax.ShapeDtypeStruct:
    """Shape, dtype and sharding of a value as a worker holds it: raw, with the parts of all merged replicas.

    Partial sums are stacked as rows of one array; non-contiguous parts get a dimension of their own.
    """
    value, layout = schedule.shapes[key], layout_of(schedule, key)
    shape, axis = tuple(value.shape), None
    if where.together > 1 and layout != WHOLE:
        shape, axis = held_shape(shape, layout)
        shape = tuple(size * where.together if d == axis else size for d, size in enumerate(shape))
    raw = jax.eval_shape(to_raw, jax.ShapeDtypeStruct(shape, value.dtype))
    return jax.ShapeDtypeStruct(raw.shape, raw.dtype, sharding=where.sharding(shape, axis))


def held_shape(shape: tuple[int, ...], layout: Layout) -> tuple[tuple[int, ...], int | None]:
    """The shape of one replica's part inside the merged array, and the dimension along which parts are joined."""
    if layout == PARTIAL:
        return (1, *shape), 0
    return folded_shape(shape, layout) if isinstance(layout, Split) else (shape, None)


def to_raw(array: Any) -> Any:
    """An array as workers hold it: PRNG keys as integers, which JAX passes to compiled programs much faster."""
    return jax.random.key_data(array) if key_dtype(array.dtype) else array


def from_raw(array: Any, dtype: Any) -> Any:
    """The inverse of `to_raw`, given the dtype in the algorithm."""
    return jax.random.wrap_key_data(array, impl=key_generator(dtype)) if key_dtype(dtype) else array


def raw_function(segment: Segment, schedule: Schedule, where: Site) -> Callable[..., tuple[jax.Array, ...]]:
    """A segment as a function of raw arrays, from the view of one replica (merged or not)."""
    inside = [schedule.shapes[key] for key in segment.inputs]
    layouts = [layout_of(schedule, key) for key in segment.outputs]
    as_one = where.together > 1

    def raw(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        values = [from_raw(x, v.dtype) for x, v in zip(arrays, inside, strict=True)]
        if as_one:
            values = [x.reshape(v.shape) for x, v in zip(values, inside, strict=True)]
        if REPLICA in segment.inputs and (as_one or (where.members and segment.has_exchanges)):
            values[segment.inputs.index(REPLICA)] = jax.lax.axis_index(where.axis)
        results = segment(*values)
        if as_one:
            results = [x.reshape(held_shape(x.shape, s)[0]) for x, s in zip(results, layouts, strict=True)]
        return tuple(map(to_raw, results))

    return raw


def compile_segment(
    segment: Segment,
    schedule: Schedule,
    where: Site,
    specs: dict[Key, jax.ShapeDtypeStruct],
    function: Callable[..., tuple[jax.Array, ...]] | None = None,
) -> Callable[..., Any]:
    """A segment as one XLA program; this backend takes every segment. `function` computes the same in another way."""
    raw, donated = function or raw_function(segment, schedule, where), _usable(segment, schedule, where, specs)
    if where.members and segment.has_exchanges:
        arguments = [(specs[key], layout_of(schedule, key)) for key in segment.inputs]
        results = [layout_of(schedule, key) for key in segment.outputs]
        return compile_with_collectives(raw, where.members, where.axis, arguments, results, donated)
    inputs, outputs = (
        [holding_axis(schedule, where, key) for key in keys] for keys in (segment.inputs, segment.outputs)
    )
    shardings = tuple(specs[key].sharding for key in segment.outputs)
    jitted = jax.jit(where.spmd(raw, inputs, outputs), donate_argnums=donated, out_shardings=shardings)
    return jitted.lower(*(specs[key] for key in segment.inputs)).compile()


def _usable(
    segment: Segment, schedule: Schedule, where: Site, specs: dict[Key, jax.ShapeDtypeStruct]
) -> tuple[int, ...]:
    """The donated inputs whose memory some output can reuse; JAX would warn the user about the others."""
    # A replica by itself has arrays of its own, whichever part of a value they are.
    alone = where.together == 1 and not (where.members and segment.has_exchanges)

    def place(key: Key) -> tuple[Any, ...]:
        layout = WHOLE if alone else layout_of(schedule, key)
        return specs[key].shape, specs[key].dtype, specs[key].sharding, layout

    free, usable = Counter(map(place, segment.outputs)), []
    for i in segment.donated:
        if free[place(segment.inputs[i])]:
            free[place(segment.inputs[i])] -= 1
            usable.append(i)
    return tuple(usable)


def holding_axis(schedule: Schedule, where: Site, key: Key) -> int | None:
    """The dimension along which merged replicas hold parts of a value."""
    layout = layout_of(schedule, key)
    return held_shape(schedule.shapes[key].shape, layout)[1] if where.together > 1 else None


def layout_of(schedule: Schedule, key: Key) -> Layout:
    """How replicas hold a value."""
    return schedule.program.layouts.get(key, WHOLE) if isinstance(key, int) else WHOLE


def _vmapped(
    function: Callable, name: str, count: int, inputs: list[int | None], outputs: list[int | None]
) -> Callable:
    """Replicas as rows of one batch on one device; their collectives become sums and copies over the rows."""

    def run(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        rows = [x if axis is None else _split(x, axis, count) for x, axis in zip(arrays, inputs, strict=True)]
        results = jax.vmap(function, in_axes=tuple(inputs), out_axes=tuple(outputs), axis_name=name, axis_size=count)(
            *rows
        )
        return tuple(x if axis is None else _join(x, axis) for x, axis in zip(results, outputs, strict=True))

    return run


def _split(x: jax.Array, axis: int, count: int) -> jax.Array:
    return x.reshape(*x.shape[:axis], count, x.shape[axis] // count, *x.shape[axis + 1 :])


def _join(x: jax.Array, axis: int) -> jax.Array:
    return x.reshape(*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :])
