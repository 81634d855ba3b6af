"""`fragmenta plan`: compare distribution policies by prediction, here or on machines that are only described."""

import dataclasses
import functools
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fragmenta.algorithms import Algorithm
from fragmenta.checks.trial import measured_rate
from fragmenta.cli.arguments import EnvFlags, PolicyName, read
from fragmenta.engines import EngineOptions, engine_named
from fragmenta.engines.hardware import ensure_cpu_devices
from fragmenta.engines.this_machine import this_machine
from fragmenta.envs import Environment, make
from fragmenta.errors import ConfigError
from fragmenta.pictures.scaling_picture import draw_scaling
from fragmenta.planner import words
from fragmenta.planner.comparing import (
    PlanComparison,
    compare_elsewhere,
    compare_here,
    options_elsewhere,
    options_in,
    space_elsewhere,
    space_here,
)
from fragmenta.planner.predicting import predictor
from fragmenta.planner.profile import Profile, profile_here
from fragmenta.planner.scaling import Kind, ScalingCurve, scale, sizes
from fragmenta.policies import POLICIES, resolve
from fragmenta.policies.machine_files import read_machines
from fragmenta.policies.machines import Machines
from fragmenta.profiling.perfetto import to_perfetto
from fragmenta.runs.run_directory import write_whole
from fragmenta.tracing.trace import trace
from fragmenta.training.planning import DEFAULT_ENGINE, check_run
from fragmenta_host.options import cores

MEASURED = 3
"""How many of the fastest --measure runs."""


@dataclasses.dataclass(frozen=True)
class WantedOptions:
    """What to compare, and on which machines."""

    cluster: str | None = None
    """Machines that are not here: a file in TOML, or the name of a template. Default: this machine."""
    policy: tuple[PolicyName, ...] = ()
    """Distribution policies to compare. Default: all."""
    replicas: tuple[int, ...] = ()
    """Numbers of replicas to compare. Default: those that suit the devices."""
    engine: str | None = None
    """What runs the fragments: local, processes or ray. Default: those that suit the machines."""
    seconds: float = 8.0
    """How long to measure what the plans compile, on this machine; the first is always measured."""
    measure: bool = False
    """Run the best three here for a few seconds each, and print predicted beside measured."""
    out: Path | None = None
    """The file to write: the simulated timeline of the choice (.pftrace), or with --scale a chart (.png or .svg)."""


@dataclasses.dataclass(frozen=True)
class ScaleOptions:
    """Throughput against the number of devices."""

    scale: str | None = None
    """Numbers of devices, as in 1..4096: simulate every power of two between them, with more nodes of the last kind."""
    scaling: Kind = "weak"
    """weak: every device has as many environments as --num-envs says; strong: all together have."""


@dataclasses.dataclass(frozen=True)
class PlanOptions:
    """All flags of `fragmenta plan` but for the hyper-parameters, in the order of the help."""

    comparison: WantedOptions
    scaling: ScaleOptions
    environment: EnvFlags


def run(arguments: list[str]) -> int:
    """Print the candidates with what is predicted of them, and the choice; or a table of throughput against devices."""
    algorithm, env, options = read("plan", PlanOptions, arguments)
    wanted = options.comparison
    _check(wanted, options.scaling)
    counts = sizes(options.scaling.scale) if options.scaling.scale else ()
    machines = read_machines(wanted.cluster) if wanted.cluster else None
    if machines is None:
        ensure_cpu_devices(cores())
    environment = make(env, options.environment)
    check_run(algorithm, environment, wanted.engine or DEFAULT_ENGINE)
    title = f"{type(algorithm).__name__} on {env}"
    if counts:
        described = machines or this_machine()
        policies = wanted.policy or tuple(POLICIES)
        curves = scale(algorithm, environment, described, policies, counts, options.scaling.scaling, _known())
        _show_scaling(title, curves, wanted.out, options.scaling.scaling)
        return 0
    comparison, described = _compared(algorithm, environment, wanted, machines)
    _show(f"{title}, {algorithm.num_envs:,} environments, {words.machines_text(described)}", comparison)
    if wanted.out:
        _write(wanted.out, to_perfetto(comparison.chosen.prediction.simulation.timelines))
        print(f"simulated timeline: {wanted.out}")
    if wanted.measure:
        _measure(algorithm, env, options.environment, comparison)
    return 0


def _check(wanted: WantedOptions, scaling: ScaleOptions) -> None:
    """ConfigError for flags that cannot be used, before anything is measured."""
    for policy in wanted.policy:
        resolve(policy)
    if wanted.engine:
        engine_named(wanted.engine)
    for count in wanted.replicas:
        if count < 1:
            raise ConfigError(f"replicas is {count}: it must be at least 1")
    if not wanted.seconds >= 0:
        raise ConfigError(f"seconds is {wanted.seconds}: it must be at least 0")
    if wanted.measure and wanted.cluster:
        raise ConfigError(f"measure is for this machine, but cluster is '{wanted.cluster}': leave one of them out")
    if scaling.scale and (wanted.measure or wanted.replicas or wanted.engine):
        flag = "measure" if wanted.measure else "replicas" if wanted.replicas else "engine"
        raise ConfigError(f"scale simulates its own numbers of devices: leave out --{flag}")
    if wanted.out:
        suffixes = (".png", ".svg") if scaling.scale else (".pftrace",)
        if wanted.out.suffix not in suffixes:
            raise ConfigError(f"out is '{wanted.out}': choose a name that ends in {' or '.join(suffixes)}")
        if not wanted.out.parent.is_dir():
            raise ConfigError(f"out is '{wanted.out}', but there is no directory '{wanted.out.parent}'")


@functools.cache
def _known() -> Profile:
    """What was measured on this machine before: it corrects estimates for devices of the same kind."""
    return profile_here(this_machine())


def _compared(
    algorithm: Algorithm, env: Environment, wanted: WantedOptions, machines: Machines | None
) -> tuple[PlanComparison, Machines]:
    """The comparison, and the machines that it is for."""
    graph, profile = trace(algorithm, env), _known()
    if machines:
        space = space_elsewhere(machines, algorithm.num_envs, wanted.engine, wanted.policy, wanted.replicas)
        predict = predictor(algorithm, env, graph, profile, machines)
        choose = options_in if wanted.replicas else functools.partial(options_elsewhere, predict)
        return compare_elsewhere(predict, choose(algorithm, env, graph, space)), machines
    cluster = engine_named(wanted.engine or DEFAULT_ENGINE).cluster(EngineOptions())
    space = dataclasses.replace(space_here(env, cluster, wanted.engine, wanted.policy), replicas=wanted.replicas)
    options = options_in(algorithm, env, graph, space)
    comparison = compare_here(
        predictor(algorithm, env, graph, profile), options, wanted.seconds, MEASURED if wanted.measure else 0
    )
    profile.keep()
    return comparison, this_machine()


def _show(title: str, comparison: PlanComparison) -> None:
    print(title)
    table = Table()
    for column in words.COLUMNS:
        table.add_column(column, no_wrap=column in words.COLUMNS[1:4])
    for row in words.rows(comparison):
        table.add_row(*row)
    _console().print(table)
    if comparison.slower > 0:
        print(f"{comparison.slower} slower ones are not shown")
    if any(one.prediction.is_estimate for one in comparison.compared):
        print(f"{words.ESTIMATE} estimate: computed from operations and bytes instead of measured")
    for line in comparison.too_large:
        print(f"left out: {line}")
    print(f"choice: {words.reason(comparison)}")


def _show_scaling(title: str, curves: list[ScalingCurve], out: Path | None, kind: Kind) -> None:
    envs = "as many environments per device" if kind == "weak" else "as many environments in total"
    print(f"{title}, simulated, {envs}")
    table = Table()
    table.add_column("devices", justify="right")
    for curve in curves:
        table.add_column(curve.policy, justify="right")
    for count in (point.devices for point in curves[0].points):
        cells = []
        for curve in curves:
            point = next((p for p in curve.points if p.devices == count), None)
            cells.append(f"{words.rate_text(point.steps_per_second)} {curve.efficiency(point):.0%}" if point else "-")
        table.add_row(f"{count:,}", *cells)
    _console().print(table)
    print("steps per second, and the speed per device as a share of that on the fewest devices; all are estimates")
    for curve in curves:
        print(f"{curve.policy} on {curve.points[-1].devices:,}: {curve.points[-1].bottleneck}")
    if out:
        draw_scaling(out, title, curves)
        print(f"chart: {out}")


def _measure(algorithm: Algorithm, env: str, options: EnvFlags, comparison: PlanComparison) -> None:
    """Run the best three, and print predicted beside measured."""
    print("measured here, in steady state:")
    for one in comparison.compared[:MEASURED]:
        expected = one.steps_per_second
        rate = measured_rate(algorithm, env, options, one.prediction, seconds=4.0)
        texts = words.rate_text(expected), words.rate_text(rate)
        off = expected / rate - 1
        line = f"{one.candidate.description}: predicted {texts[0]}, measured {texts[1]} steps/s ({off:+.0%})"
        print(f"  {line}", flush=True)


def _write(path: Path, content: bytes) -> None:
    try:
        write_whole(path, content)
    except OSError as error:
        raise ConfigError(f"cannot write '{path}': {error.strerror}") from None


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 140)
