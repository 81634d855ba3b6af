"""What a worker is made of: a fragment compiled for its site, and the channels to the others."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from fragmenta.worker.backends.burst import compile_burst
from fragmenta.worker.backends.xla import Site, compile_schedule, hold
from fragmenta.worker.channels.mailbox import Mailbox
from fragmenta.worker.channels.memory import Channel
from fragmenta.worker.steps import Key, Schedule


@dataclasses.dataclass(frozen=True)
class Deployment:
    """A fragment ready to run at one site: its schedule with all segments compiled."""

    schedule: Schedule
    site: Site
    compiled: dict[int, Callable[..., Any]]
    held: dict[Key, jax.ShapeDtypeStruct]
    """Shape, type and place of every value, as the worker holds it."""
    burst: Callable[..., Any] | None
    """Several iterations at once, for a fragment that only computes; its segments are then not compiled apart."""


def deploy(schedule: Schedule, site: Site) -> Deployment:
    """Compile a schedule for a site; nothing is left to compile or to look up at run time."""
    held = {key: hold(schedule, site, key) for key in schedule.shapes}
    burst = compile_burst(schedule, site, held)
    compiled = {} if burst else compile_schedule(schedule, site, held)
    return Deployment(schedule, site, compiled, held, burst)


@dataclasses.dataclass(frozen=True)
class Ports:
    """The channels of one replica: for every interface, one per replica on the other side.

    Between fragments that do not wait for each other: one mailbox, by the name of the fragment on the other side.
    """

    outgoing: dict[tuple[int, str], list[Channel]]
    incoming: dict[tuple[int, str], list[Channel]]
    posts: dict[str, Mailbox]
    pickups: dict[str, Mailbox]
