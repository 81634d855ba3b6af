"""`fragmenta graph`: show the graph under a distribution policy; for a run, with measured times and bytes."""

import dataclasses
import os
import sys
from pathlib import Path
from typing import Literal

from fragmenta.cli.arguments import ClusterOptions, EnvFlags, PolicyName, read, read_options
from fragmenta.coordinator.plan import project
from fragmenta.drawing.flowchart import lay_out, read_flowchart
from fragmenta.drawing.flowchart_svg import svg_file
from fragmenta.engines.kernel_listing import kernel_lines
from fragmenta.envs import make
from fragmenta.errors import ConfigError
from fragmenta.graph import Plan
from fragmenta.graph.show import show_plan, to_mermaid
from fragmenta.pictures.flowchart_png import png_file
from fragmenta.profiling.timings import Timings
from fragmenta.runs.opening import load
from fragmenta.runs.run_directory import write_whole
from fragmenta.runs.timeline_files import read_timings
from fragmenta.tracing.trace import trace
from fragmenta.training.retrace import plan_of
from fragmenta.worker.backends.kernel import use_kernels

Format = Literal["text", "mermaid", "svg", "png"]
SUFFIXES: dict[str, Format] = {".txt": "text", ".mmd": "mermaid", ".svg": "svg", ".png": "png"}


@dataclasses.dataclass(frozen=True)
class DrawingOptions:
    """How to show the graph; for a run, instead of ALGORITHM ENVIRONMENT: `fragmenta graph RUN`."""

    format: Format | None = None
    """A listing, a Mermaid flowchart, or a drawing. Default: by the name of the file, or the listing."""
    out: Path | None = None
    """The file to write. Default: print it."""
    kernels: Literal["on", "off"] = "off"
    """In the listing, also what `--kernels on` runs as generated kernels on this machine's NVIDIA GPU, and why not
    more."""


@dataclasses.dataclass(frozen=True)
class PlacementOptions(ClusterOptions):
    """Where the fragments run."""

    policy: PolicyName = "single_learner_coarse"
    """Which part of the loop runs where."""
    merge: bool = False
    """Merge fragments and replicas that share a device, as training does."""


@dataclasses.dataclass(frozen=True)
class GraphOptions:
    """All flags of `fragmenta graph ALGORITHM ENVIRONMENT` but for the hyper-parameters, in the order of the help."""

    drawing: DrawingOptions
    placement: PlacementOptions
    environment: EnvFlags


def run(arguments: list[str]) -> int:
    """Print the graph and the programs of its fragments; for a run directory, with measurements."""
    if arguments and (os.sep in arguments[0] or Path(arguments[0]).is_dir()):
        name, run_options = read_options("graph", "RUN", DrawingOptions, arguments)
        format = _checked(run_options)
        use_kernels(run_options.kernels == "on")
        run = load(Path(name))
        timings = read_timings(Path(name))
        _show(plan_of(run), format, run_options.out, timings)
        return 0
    algorithm, env, options = read("graph", GraphOptions, arguments)
    placement, drawing = options.placement, options.drawing
    cluster = placement.cluster()  # before the first array, which would fix the number of devices
    cluster = dataclasses.replace(cluster, replicas=cluster.replicas or 1)
    environment = make(env, options.environment)
    algorithm.validate(environment)
    format = _checked(drawing)
    use_kernels(drawing.kernels == "on")
    plan = project(trace(algorithm, environment), placement.policy, cluster, placement.merge)
    _show(plan, format, drawing.out)
    return 0


def _checked(options: DrawingOptions) -> Format:
    """The format to write; ConfigError if the file cannot have it."""
    if options.out is None:
        if options.format == "png":
            raise ConfigError("format png cannot be printed: give the file to write, as in --out graph.png")
        return options.format or "text"
    if not options.out.parent.is_dir():
        raise ConfigError(f"out is '{options.out}', but there is no directory '{options.out.parent}': create it first")
    named = SUFFIXES.get(options.out.suffix)
    if options.format is None and named is None:
        raise ConfigError(f"out is '{options.out}': choose a name that ends in {', '.join(SUFFIXES)}, or give --format")
    if options.format and named and options.format != named:
        raise ConfigError(
            f"format is {options.format}, but out is '{options.out}': leave out --format, or rename the file"
        )
    return options.format or named or "text"


def _show(plan: Plan, format: Format, out: Path | None, timings: Timings | None = None) -> None:
    content = _content(plan, format, timings)
    if out is None:
        sys.stdout.write(content.decode())
        return
    try:
        write_whole(out, content)
    except OSError as error:
        raise ConfigError(f"cannot write '{out}': {error.strerror}") from None
    print(f"graph: {out}")


def _content(plan: Plan, format: Format, timings: Timings | None) -> bytes:
    if format == "text":
        return "\n".join([f"{plan.graph}\n", show_plan(plan, timings), *kernel_lines(plan), ""]).encode()
    mermaid = to_mermaid(plan, timings)
    if format == "mermaid":
        return mermaid.encode()
    drawing = lay_out(*read_flowchart(mermaid))
    return svg_file(drawing).encode() if format == "svg" else png_file(drawing)
