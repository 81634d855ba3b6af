"""Compile segments with XLA, for one device or for replicas that run together over several."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from fragmenta.coordinator.jaxprs import key_dtype
from fragmenta.errors import ConfigError, unknown
from fragmenta.worker.backends.meeting import compile_meeting
from fragmenta.worker.steps import Key, Rounds, Schedule, Segment, Step

UNROLL = {"gpu": 16}
"""How far loops over stages are unrolled, per platform: on a GPU each round is a launch, on a CPU it is not."""


@dataclasses.dataclass(frozen=True)
class Site:
    """Where a worker computes: one device, or one for each of several replicas along `axis` that run together."""

    devices: tuple[Any, ...]
    together: int = 1
    axis: str = ""
    members: tuple[Any, ...] = ()
    """For one of several replicas along `axis` that meet across processes: the devices of all of them."""

    @property
    def platform(self) -> str:
        """`cpu`, `gpu` or `tpu`."""
        return self.devices[0].platform

    @property
    def unroll(self) -> int:
        """How far compiled loops that hold stages are unrolled here."""
        return UNROLL.get(self.platform, 1)

    def sharding(self, shape: tuple[int, ...], axis: int | None) -> Any:
        """How an array lies on the devices, given the dimension along which replicas hold parts."""
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
        """A function of one replica as a function of all of them, whose values hold the parts of all."""
        if self.together == 1:
            return function
        if len(self.devices) == 1:
            return _vmapped(function, self.axis, self.together, inputs, outputs)
        specs = [tuple(self._spec(axis) for axis in axes) for axes in (inputs, outputs)]
        return jax.shard_map(function, mesh=self._mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False)


def site(names: tuple[str, ...], axis: str | None = None) -> Site:
    """The devices of that name; replicas along `axis` run together there."""
    known = {device_name(device): device for device in jax.devices()}
    for name in names:
        if name not in known:
            raise unknown("device", name, known)
    distinct = tuple(dict.fromkeys(names))
    if axis and len(distinct) not in (1, len(names)):
        raise ConfigError(
            f"{len(names)} replicas that talk to each other are on {len(distinct)} devices ({', '.join(distinct)}): "
            f"give each its own, or let those that share one be merged"
        )
    return Site(tuple(known[name] for name in distinct), len(names) if axis else 1, axis or "")


def device_name(device: Any) -> str:
    """How policies name a device: `cpu:0`."""
    return f"{device.platform}:{device.id}"


def compile_schedule(schedule: Schedule, where: Site, held: dict[Key, jax.ShapeDtypeStruct]) -> dict[int, Callable]:
    """Every segment of a schedule compiled, by its `id`."""
    compiled: dict[int, Callable] = {}

    def visit(steps: tuple[Step, ...]) -> None:
        for step in steps:
            if isinstance(step, Rounds):
                visit(step.body)
            elif isinstance(step, Segment):
                compiled[id(step)] = _compile(step, schedule, where, held)

    visit(schedule.steps)
    return compiled


def hold(schedule: Schedule, where: Site, key: Key) -> jax.ShapeDtypeStruct:
    """Shape, type and place of a value as a worker holds it: raw, with the parts of all replicas that run together."""
    value, axis = schedule.shapes[key], holding_axis(schedule, where, key)
    shape = list(value.shape)
    if axis is not None:
        shape[axis] *= where.together
    raw = jax.eval_shape(to_raw, jax.ShapeDtypeStruct(tuple(shape), value.dtype))
    return jax.ShapeDtypeStruct(raw.shape, raw.dtype, sharding=where.sharding(value.shape, axis))


def to_raw(array: Any) -> Any:
    """An array as workers hold it: PRNG keys as plain numbers, which JAX passes to compiled programs much faster."""
    return jax.random.key_data(array) if key_dtype(array.dtype) else array


def from_raw(array: Any, dtype: Any) -> Any:
    """The inverse of `to_raw`, given the type that the algorithm knows."""
    return jax.random.wrap_key_data(array) if key_dtype(dtype) else array


def _compile(segment: Segment, schedule: Schedule, where: Site, held: dict[Key, jax.ShapeDtypeStruct]) -> Callable:
    def raw(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        types = (schedule.shapes[key].dtype for key in segment.inputs)
        return tuple(map(to_raw, segment(*map(from_raw, arrays, types))))

    inputs, outputs = (
        [holding_axis(schedule, where, key) for key in keys] for keys in (segment.inputs, segment.outputs)
    )
    if where.members and segment.meets:
        axes = schedule.program.axes
        arguments = [(held[key], _axis(axes, key)) for key in segment.inputs]
        results = [_axis(axes, key) for key in segment.outputs]
        return compile_meeting(raw, where.members, where.axis, arguments, results, segment.donated)
    placed = tuple(held[key].sharding for key in segment.outputs)
    jitted = jax.jit(where.spmd(raw, inputs, outputs), donate_argnums=segment.donated, out_shardings=placed)
    return jitted.lower(*(held[key] for key in segment.inputs)).compile()


def holding_axis(schedule: Schedule, where: Site, key: Key) -> int | None:
    """The dimension along which replicas that run together hold parts of a value."""
    return _axis(schedule.program.axes, key) if where.together > 1 else None


def _axis(axes: dict[int, int], key: Key) -> int | None:
    return axes.get(key) if isinstance(key, int) else None


def _vmapped(
    function: Callable, name: str, count: int, inputs: list[int | None], outputs: list[int | None]
) -> Callable:
    """Replicas as rows of one batch on one device; marks become sums over the rows."""

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
