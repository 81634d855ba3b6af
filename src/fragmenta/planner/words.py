"""What is said of candidates: rows of a table, and sentences."""

from fragmenta.graph import Plan
from fragmenta.graph.words import byte_text
from fragmenta.planner.comparing import Compared, PlanComparison
from fragmenta.planner.search import CLEARLY
from fragmenta.policies.machines import Machines
from fragmenta.profiling.timings import Timings, bottleneck, busy_share, ms_text, share, waiting

COLUMNS = ("candidate", "steps/s", "iteration", "crosses", "memory", "where the time goes")
ESTIMATE = "~"
"""Stands behind what was estimated instead of measured."""


def rows(comparison: PlanComparison) -> list[tuple[str, ...]]:
    """A row per candidate, the fastest first; the chosen one is marked with an arrow."""
    return [_row(one, one is comparison.chosen) for one in comparison.compared]


def _row(one: Compared, is_chosen: bool) -> tuple[str, ...]:
    candidate, mark = one.candidate, ESTIMATE if one.prediction.is_estimate else ""
    changed = "" if candidate.keeps_result else "\nchanges the result"
    simulation = one.prediction.simulation
    fragments = [need.fragment for need in one.memory]
    return (
        f"{'> ' if is_chosen else '  '}{candidate.description}{changed}",
        f"{rate_text(one.steps_per_second)}{mark}",
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
    chosen = comparison.chosen
    others = [one for one in comparison.compared if one is not chosen and one.candidate.keeps_result]
    text = f"{chosen.candidate.description}, because "
    second = max(others, key=lambda one: one.steps_per_second, default=None)
    if second is None:
        changes = "" if chosen.candidate.keeps_result else ", though it changes the result"
        text += f"no other one was measured that could be chosen{changes}"
    else:
        ratio = chosen.steps_per_second / second.steps_per_second
        name = second.candidate.description
        if ratio >= CLEARLY:
            text += f"it is predicted to be {ratio:.2f} times as fast as {name}"
        else:
            text += f"it is simpler than {name}, which is about as fast"
    return f"{text}; {bottleneck(chosen.prediction.simulation.timings)}"


def machines_text(machines: Machines) -> str:
    """How many nodes and devices of which models, in a few words."""
    models = {machines.device(name).model for name in machines.devices}
    count, nodes = len(machines.devices), len(machines.nodes)
    where = f"{nodes} nodes" if nodes > 1 else "one node"
    what = f"devices ({', '.join(sorted(models))})" if count > 1 else f"device ({models.pop()})"
    return f"{where}, {count} {what}"


def rate_text(rate: float) -> str:
    """Steps per second with three digits: `12.3 M`."""
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if rate >= limit:
            return f"{rate / limit:.3g}{unit}"
    return f"{rate:.3g}"
