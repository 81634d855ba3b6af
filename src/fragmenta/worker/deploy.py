"""The parts of a worker: a fragment compiled for its site, and the channels to other workers."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from fragmenta.worker.backends.burst import compile_burst
from fragmenta.worker.backends.xla import Site, compile_segment, spec_of
from fragmenta.worker.channels.mailbox import Mailbox
from fragmenta.worker.channels.memory import Receiver, Sender
from fragmenta.worker.steps import Key, Schedule, Segment, segments


@dataclasses.dataclass(frozen=True)
class Deployment:
    """A fragment ready to run at one site: its schedule with all segments compiled."""

    schedule: Schedule
    site: Site
    compiled: dict[int, Callable[..., Any]]
    specs: dict[Key, jax.ShapeDtypeStruct]
    """Shape, dtype and sharding of every value, as the worker holds it."""
    burst: Callable[..., Any] | None
    """Runs several iterations per call, for a fragment that only computes; `compiled` is empty then."""


Backend = Callable[[Segment, Schedule, Site, dict[Key, jax.ShapeDtypeStruct]], Callable[..., Any] | None]
"""Compiles a segment for a site, or returns None to leave it to the next backend."""

BACKENDS: tuple[Backend, ...] = (compile_segment,)
"""In order of preference; the last one, XLA, takes every segment."""


def deploy(schedule: Schedule, site: Site, backends: Sequence[Backend] = BACKENDS) -> Deployment:
    """Compile a schedule for a site ahead of time, so that nothing is compiled or looked up at run time."""
    specs = {key: spec_of(schedule, site, key) for key in schedule.shapes}
    if burst := compile_burst(schedule, site, specs):
        return Deployment(schedule, site, {}, specs, burst)
    compiled: dict[int, Callable[..., Any]] = {}
    for segment in segments(schedule.steps):
        attempts = (backend(segment, schedule, site, specs) for backend in backends)
        compiled[id(segment)] = next(program for program in attempts if program)
    return Deployment(schedule, site, compiled, specs, None)


@dataclasses.dataclass(frozen=True)
class Ports:
    """The channels of one replica: for every interface, one per replica on the other side.

    Fragments that do not wait for each other share one mailbox instead, keyed by the name of the other fragment.
    """

    outgoing: dict[tuple[int, str], list[Sender]]
    incoming: dict[tuple[int, str], list[Receiver]]
    posts: dict[str, Mailbox]
    pickups: dict[str, Mailbox]
    replies: dict[str, list[Mailbox]]
    """For replies to another fragment, the mailbox of each of its replicas."""
