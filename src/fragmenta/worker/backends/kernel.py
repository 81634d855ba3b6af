"""Segments with GPU kernels in them, generated from what they compute; XLA compiles the rest around them."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from fragmenta.tracing.jaxprs import as_closed_function
from fragmenta.worker.backends.xla import Site, raw_function
from fragmenta.worker.kernels import nvrtc
from fragmenta.worker.kernels.launch import CudaLaunch
from fragmenta.worker.kernels.plain import plain
from fragmenta.worker.kernels.rewrite import Prepare, Report, Rewriter, Taken
from fragmenta.worker.kernels.tuning import Tuning, identity
from fragmenta.worker.steps import Key, Schedule, Segment


class Switch:
    """A setting of the process."""

    on = False
    """Whether it makes kernels."""


def use_kernels(on: bool) -> None:
    """Make kernels in this process, or leave everything to XLA."""
    Switch.on = on


def obstacle(device: Any) -> str:
    """Why there are no kernels for a device; empty if there are."""
    if device.platform != "gpu" or "cuda" not in device.client.platform_version.lower():
        return "no NVIDIA GPU"
    if nvrtc.library() is None:
        return "NVRTC is not installed: pip install nvidia-cuda-nvrtc"
    if float(device.compute_capability) < 8.0:
        return f"compute capability {device.compute_capability}, but kernels need 8.0"
    return ""


def launcher_for(where: Site) -> CudaLaunch | None:
    """What calls kernels at a site, if anything can."""
    if not Switch.on or len(where.devices) != 1 or where.together != 1 or obstacle(where.devices[0]):
        return None
    device, folder = where.devices[0], jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    cache = Path(folder) / "kernels" if folder else None
    return CudaLaunch(device.compute_capability, device.core_count, cache)


def tuned_launcher(where: Site) -> Tuning | None:
    """The same, for kernels that are faster than what XLA makes of their equations."""
    launch = launcher_for(where)
    if launch is None:
        return None
    return Tuning(launch.ways, identity(where.devices[0].device_kind), launch.cache)


@dataclasses.dataclass(frozen=True)
class Rewritten:
    """A segment as a function of raw arrays with kernels in it, and what became of it."""

    function: Callable[..., tuple[Any, ...]]
    report: Report


def segment_with_kernels(
    segment: Segment,
    schedule: Schedule,
    where: Site,
    specs: dict[Key, jax.ShapeDtypeStruct],
    prepare: Prepare | Tuning,
) -> Rewritten:
    """A segment with kernels for what treats every row alike; the report says what does not, and why."""
    return with_kernels(raw_function(segment, schedule, where), [specs[key] for key in segment.inputs], prepare)


def with_kernels(function: Callable[..., Any], shapes: Sequence[Any], prepare: Prepare | Tuning) -> Rewritten:
    """A function of raw arrays of these shapes, with kernels in it: all that can be, or those that are faster."""
    report = Report()
    closed = jax.make_jaxpr(function)(*shapes)
    if closed.effects:
        report.reasons.append("effects")
        return Rewritten(function, report)
    program = plain(closed)
    rewriter = Rewriter(prepare.choose if isinstance(prepare, Tuning) else lambda _: Taken(prepare), report, program)
    rewritten = jax.make_jaxpr(lambda *arrays: rewriter(arrays))(*shapes)
    evaluate = as_closed_function(rewritten)
    return Rewritten(lambda *arrays: tuple(evaluate(*arrays)), report)
