"""`fragmenta plan`: compare distribution policies by prediction, here or on machines that are only described."""

import contextlib
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
from fragmenta.planner.auto import Question, remember
from fragmenta.planner.candidates import check_placeable
from fragmenta.planner.comparing import (
    Compared,
    PlanComparison,
    compare_elsewhere,
    compare_here,
    options_elsewhere,
    options_in,
    space_elsewhere,
    space_here,
)
from fragmenta.planner.efficiency import Goal, Objective
from fragmenta.planner.predicting import predictor
from fragmenta.planner.profile import Profile, profile_here
from fragmenta.planner.scaling import Kind, ScalingCurve, scale, sizes
from fragmenta.policies import POLICIES, resolve
from fragmenta.policies.machine_files import read_machines
from fragmenta.policies.machines import Machines
from fragmenta.profiling.perfetto import to_perfetto
from fragmenta.runs.run_directory import write_whole
from fragmenta.tracing.trace import trace
from fragmenta.training.options import RunOptions
from fragmenta.training.planning import (
    AUTO,
    DEFAULT_ENGINE,
    Request,
    check_run,
    is_open,
    open_question,
    user_policies_in,
)
from fragmenta_host.options import cores

MEASURED = 3
"""How many of the best that may be chosen --measure runs."""


@dataclasses.dataclass(frozen=True)
class WantedOptions:
    """What to compare, and on which machines."""

    cluster: str | None = None
    """Machines that are not here: a file in TOML, or the name of a template. Default: this machine."""
    policy: tuple[PolicyName, ...] = ()
    """Distribution policies to compare; auto stands for all built-in ones, as in --policy auto my_policies:mine.
    Default: auto."""
    replicas: tuple[int, ...] = ()
    """Numbers of replicas to compare. Default: those that suit the devices."""
    engine: str | None = None
    """What runs the fragments: local, processes or ray. Default: those that suit the machines."""
    objective: Objective = "speed"
    """speed: the most steps per second, with the result of the plain program; return: the shortest time to a return, by
    what is known of the steps that are needed with older parameters and other batches."""
    seconds: float = 8.0
    """How long to measure what the plans compile, on this machine; the first is always measured."""
    measure: bool = False
    """Run the best three that may be chosen here for a few seconds each, and print predicted beside measured."""
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
    profile = profile_here(this_machine())  # what was measured before also corrects estimates for similar devices
    if counts:
        described = machines or this_machine()
        policies = tuple(_expanded(wanted))
        curves = scale(algorithm, environment, described, policies, counts, options.scaling.scaling, profile)
        _show_scaling(title, curves, wanted.out, options.scaling.scaling)
        return 0
    question = None if machines else _question(algorithm, environment, env, wanted)
    comparison, described = _compared(algorithm, environment, wanted, machines, profile)
    _show(f"{title}, {algorithm.num_envs:,} environments, {words.machines_text(described)}", comparison)
    if wanted.out:
        _write(wanted.out, to_perfetto(comparison.chosen.prediction.simulation.timelines))
        print(f"simulated timeline: {wanted.out}")
    rates = _measure(algorithm, env, options.environment, comparison) if wanted.measure else {}
    if question:
        remember(question, [one.prediction for one in _best_first(comparison)], rates, profile)
    return 0


def _named(wanted: WantedOptions) -> list[str]:
    """The distribution policies that are given by name, besides auto."""
    return [str(name) for text in wanted.policy for name in user_policies_in(text)]


def _expanded(wanted: WantedOptions) -> list[str]:
    """The distribution policies to compare: for auto, and by default, all that are built in."""
    named = _named(wanted)
    return [*POLICIES, *(name for name in named if name not in POLICIES)] if _has_all(wanted) else named


def _has_all(wanted: WantedOptions) -> bool:
    """Whether all distribution policies that are built in are compared."""
    return not wanted.policy or any(map(is_open, wanted.policy))


def _question(algorithm: Algorithm, env: Environment, name: str, wanted: WantedOptions) -> Question | None:
    """What `train` asks the planner where its user leaves open what is compared here; None if it never asks that."""
    if not _has_all(wanted) or len(wanted.replicas) > 1:
        return None
    policy = ",".join((AUTO, *_named(wanted)))
    request = Request(algorithm, env, name, None, policy, wanted.engine, None, 0, 1, RunOptions())
    cluster = engine_named(wanted.engine or DEFAULT_ENGINE).cluster(EngineOptions(), *wanted.replicas)
    cluster = dataclasses.replace(cluster, apart=engine_named(wanted.engine or DEFAULT_ENGINE).apart)
    with contextlib.suppress(ConfigError):  # distribution policies that change the result can be compared here
        return open_question(request, cluster, trace(algorithm, env))[0]
    return None


def _best_first(comparison: PlanComparison) -> list[Compared]:
    """The candidates with the choice before the others."""
    return [comparison.chosen, *(one for one in comparison.compared if one is not comparison.chosen)]


def _check(wanted: WantedOptions, scaling: ScaleOptions) -> None:
    """ConfigError for flags that cannot be used, before anything is measured."""
    for policy in _named(wanted):
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
    if scaling.scale and (wanted.measure or wanted.replicas or wanted.engine or wanted.objective != "speed"):
        flags = {"measure": wanted.measure, "replicas": wanted.replicas, "engine": wanted.engine, "objective": True}
        flag = next(name for name, value in flags.items() if value)
        raise ConfigError(f"scale draws steps per second for its own numbers of devices: leave out --{flag}")
    if wanted.out:
        suffixes = (".png", ".svg") if scaling.scale else (".pftrace",)
        if wanted.out.suffix not in suffixes:
            raise ConfigError(f"out is '{wanted.out}': choose a name that ends in {' or '.join(suffixes)}")
        if not wanted.out.parent.is_dir():
            raise ConfigError(f"out is '{wanted.out}', but there is no directory '{wanted.out.parent}'")


def _compared(
    algorithm: Algorithm, env: Environment, wanted: WantedOptions, machines: Machines | None, profile: Profile
) -> tuple[PlanComparison, Machines]:
    """The comparison, and the machines that it is for."""
    graph = trace(algorithm, env)
    if machines:
        space = space_elsewhere(machines, algorithm.num_envs, wanted.engine, _expanded(wanted), wanted.replicas)
        check_placeable(_named(wanted), graph, space)
        predict = predictor(algorithm, env, graph, profile, machines)
        choose = options_in if wanted.replicas else functools.partial(options_elsewhere, predict)
        return compare_elsewhere(
            predict, choose(algorithm, env, graph, space), Goal(algorithm, wanted.objective)
        ), machines
    cluster = engine_named(wanted.engine or DEFAULT_ENGINE).cluster(EngineOptions())
    space = space_here(env, cluster, wanted.engine, _expanded(wanted))
    space = dataclasses.replace(space, replicas=wanted.replicas)
    check_placeable(_named(wanted), graph, space)
    options = options_in(algorithm, env, graph, space)
    at_least = MEASURED if wanted.measure else 0
    goal = Goal(algorithm, wanted.objective)
    comparison = compare_here(predictor(algorithm, env, graph, profile), options, goal, wanted.seconds, at_least)
    profile.keep()
    return comparison, this_machine()


def _show(title: str, comparison: PlanComparison) -> None:
    print(title)
    table = Table()
    for column in words.columns(comparison):
        table.add_column(column, no_wrap=column in (*words.COLUMNS[1:4], *words.RETURN_COLUMNS))
    for row in words.rows(comparison):
        table.add_row(*row)
    _console().print(table)
    if comparison.others > 0:
        print(f"{comparison.others} others are not shown")
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


def _measure(algorithm: Algorithm, env: str, options: EnvFlags, comparison: PlanComparison) -> dict[int, float]:
    """Run the best three and the choice, and print predicted beside measured; returns the steps per second by the `id`
    of the candidate."""
    print("measured here, in steady state:")
    best = [one for one in comparison.compared if one.may_be_chosen(comparison.goal)][:MEASURED]
    rates: dict[int, float] = {}
    for one in (*best, *([] if comparison.chosen in best else [comparison.chosen])):
        expected = one.steps_per_second
        rate = rates[id(one.candidate)] = measured_rate(algorithm, env, options, one.prediction, seconds=4.0)
        texts = words.rate_text(expected), words.rate_text(rate)
        off = expected / rate - 1
        line = f"{one.candidate.description}: predicted {texts[0]}, measured {texts[1]} steps/s ({off:+.0%})"
        print(f"  {line}", flush=True)
    return rates


def _write(path: Path, content: bytes) -> None:
    try:
        write_whole(path, content)
    except OSError as error:
        raise ConfigError(f"cannot write '{path}': {error.strerror}") from None


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 140)
