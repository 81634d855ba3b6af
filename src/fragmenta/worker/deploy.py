"""The parts of a worker: a fragment compiled for its site, and the channels to other workers."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from fragmenta.worker.backends.burst import compile_burst
from fragmenta.worker.backends.kernel import segment_with_kernels, tuned_launcher
from fragmenta.worker.backends.xla import Site, compile_segment, spec_of
from fragmenta.worker.channels.mailbox import Mailbox
from fragmenta.worker.channels.memory import Receiver, Sender
from fragmenta.worker.kernels.rewrite import Report
from fragmenta.worker.steps import Key, Schedule, segments


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
    kernels: dict[str, Report]
    """By segment: which kernels it has, and why not more; empty where there are no kernels."""


def deploy(schedule: Schedule, site: Site) -> Deployment:
    """Compile a schedule for a site ahead of time, so that nothing is compiled or looked up at run time."""
    specs = {key: spec_of(schedule, site, key) for key in schedule.shapes}
    functions, kernels = segments_with_kernels(schedule, site, specs)
    try:
        return _compiled(schedule, site, specs, functions, kernels)
    except jax.errors.JaxRuntimeError as error:  # such as a driver that is older than NVRTC
        if not functions:
            raise
        for report in kernels.values():
            report.refuse(str(error).splitlines()[0])
        return _compiled(schedule, site, specs, {}, kernels)


def _compiled(
    schedule: Schedule,
    site: Site,
    specs: dict[Key, jax.ShapeDtypeStruct],
    functions: dict[int, Callable[..., Any]],
    kernels: dict[str, Report],
) -> Deployment:
    if burst := compile_burst(schedule, site, specs, next(iter(functions.values()), None)):
        return Deployment(schedule, site, {}, specs, burst, kernels)
    compiled = {
        id(segment): compile_segment(segment, schedule, site, specs, functions.get(id(segment)))
        for segment in segments(schedule.steps)
    }
    return Deployment(schedule, site, compiled, specs, None, kernels)


def segments_with_kernels(
    schedule: Schedule, site: Site, specs: dict[Key, jax.ShapeDtypeStruct]
) -> tuple[dict[int, Callable[..., Any]], dict[str, Report]]:
    """The segments that have kernels in them, as functions, and what became of each segment."""
    launcher = tuned_launcher(site)
    if launcher is None:
        return {}, {}
    functions, reports = {}, {}
    for segment in segments(schedule.steps):
        if segment.has_exchanges:
            continue
        rewritten = segment_with_kernels(segment, schedule, site, specs, launcher)
        reports[segment.label] = rewritten.report
        if rewritten.report.kernels:
            functions[id(segment)] = rewritten.function
    return functions, reports


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
