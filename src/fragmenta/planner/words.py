"""What is said of candidates: rows of a table, and sentences."""

from fragmenta.graph import Plan
from fragmenta.graph.words import byte_text
from fragmenta.planner.comparing import Compared, PlanComparison
from fragmenta.planner.efficiency import Goal
from fragmenta.planner.search import CLEARLY
from fragmenta.policies.machines import Machines
from fragmenta.profiling.timings import Timings, bottleneck, busy_share, ms_text, share, waiting

COLUMNS = ("candidate", "steps/s", "iteration", "crosses", "memory", "where the time goes")
RETURN_COLUMNS = ("steps needed", "time")
"""Behind the speed, if the objective is a return: as a multiple of the plain program's, and for all steps of training
times that."""
ESTIMATE = "~"
"""Stands behind what was estimated instead of measured."""


def columns(comparison: PlanComparison) -> tuple[str, ...]:
    """The names of the columns."""
    about_return = RETURN_COLUMNS if comparison.goal.objective == "return" else ()
    return (*COLUMNS[:2], *about_return, *COLUMNS[2:])


def rows(comparison: PlanComparison) -> list[tuple[str, ...]]:
    """A row per candidate, the best first; the chosen one is marked with an arrow."""
    return [_row(one, one is comparison.chosen, comparison.goal) for one in comparison.compared]


def _row(one: Compared, is_chosen: bool, goal: Goal) -> tuple[str, ...]:
    candidate, mark = one.candidate, ESTIMATE if one.prediction.is_estimate else ""
    changed = "" if candidate.keeps_result else "\nchanges the result"
    simulation = one.prediction.simulation
    seconds = one.steps_needed * goal.algorithm.total_steps / one.steps_per_second
    about_return = (f"{one.steps_needed:.2f} x", f"{seconds_text(seconds)}{mark}")
    fragments = [need.fragment for need in one.memory]
    return (
        f"{'> ' if is_chosen else '  '}{candidate.description}{changed}",
        f"{rate_text(one.steps_per_second)}{mark}",
        *(about_return if goal.objective == "return" else ()),
        f"{ms_text(simulation.seconds * 1e3)}{mark}",
        byte_text(crossing_bytes(candidate.plan)),
        "\n".join(f"{need.fragment} {need}" if len(fragments) > 1 else str(need) for need in one.memory),
        "\n".join(time_texts(simulation.timings)),
    )


def time_texts(timings: Timings) -> list[str]:
    """Per fragment, the shares of an iteration in which it computes, waits and transfers."""
    texts = []
    for name in dict.fromkeys(worker.fragment for worker in timings.workers):
        workers = timings.of(name)
        computing, placing = busy_share(workers), share(workers, lambda worker: worker.place_ms)
        total = sum(worker.iteration_ms for worker in workers) / len(workers)
        waits = sum(waiting(workers).values()) / total if total else 0.0
        parts = [f"computes {computing:.0%}"]
        parts += [f"{verb} {part:.0%}" for verb, part in (("waits", waits), ("transfers", placing)) if part >= 0.005]
        texts.append(f"{name}: {', '.join(parts)}")
    return texts


def crossing_bytes(plan: Plan) -> int:
    """Bytes that arrive per iteration, between fragments and among replicas."""
    among = sum(c.bytes_per_iteration for program in plan.programs for c in program.collectives())
    return among + sum(interface.bytes_per_iteration for interface in plan.interfaces)


def reason(comparison: PlanComparison) -> str:
    """Why this one was chosen, in a sentence."""
    text = f"{comparison.chosen.candidate.description}, because {_because(comparison)}"
    return f"{text}; {bottleneck(comparison.chosen.prediction.simulation.timings)}"


def _because(comparison: PlanComparison) -> str:
    chosen, goal = comparison.chosen, comparison.goal
    is_free = not chosen.may_be_chosen(goal)  # then there is nothing else
    others = [one for one in comparison.compared if one is not chosen and (is_free or one.may_be_chosen(goal))]
    second = max(others, key=lambda one: _value(one, goal), default=None)
    if second is None and not chosen.candidate.keeps_result:
        return "it is the only one of these that can run, though it changes the result"
    if second is None:
        return "it is the only one that can run and keeps the result of the plain program"
    name, ratio = second.candidate.description, _value(chosen, goal) / _value(second, goal)
    if ratio < 1 / CLEARLY:
        estimate = f"{rate_text(second.steps_per_second)} steps/s is an estimate for {name}"
        return f"it is the best that was measured; {estimate}, which more --seconds would measure"
    if ratio < CLEARLY:
        return f"it is simpler than {name}, which is about as {'good' if goal.objective == 'return' else 'fast'}"
    what = f"reach a return in {1 / ratio:.0%} of the time of" if goal.objective == "return" else ""
    return f"it is predicted to {what} {name}" if what else f"it is predicted to be {ratio:.2f} times as fast as {name}"


def _value(one: Compared, goal: Goal) -> float:
    return goal.value(one.steps_per_second, one.candidate.plan, one.prediction.simulation.lag)


def machines_text(machines: Machines) -> str:
    """How many nodes and devices of which models, in a few words."""
    models = {machines.device(name).model for name in machines.devices}
    count, nodes = len(machines.devices), len(machines.nodes)
    where = f"{nodes} nodes" if nodes > 1 else "one node"
    what = f"devices ({', '.join(sorted(models))})" if count > 1 else f"device ({models.pop()})"
    return f"{where}, {count} {what}"


def seconds_text(seconds: float) -> str:
    """A duration in a few characters: `12.3 s`, `4.5 min`."""
    for limit, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * limit:
            return f"{seconds / limit:.3g} {unit}"
    return f"{seconds:.3g} s"


def rate_text(rate: float) -> str:
    """Steps per second with three digits: `12.3 M`."""
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if rate >= limit:
            return f"{rate / limit:.3g}{unit}"
    return f"{rate:.3g}"
