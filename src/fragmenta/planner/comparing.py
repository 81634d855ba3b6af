"""Compares the candidates for an algorithm on an environment: predictions of all, and which of them to choose."""

import dataclasses
import math
from collections.abc import Sequence

from fragmenta.algorithms import Algorithm
from fragmenta.coordinator.plan import project
from fragmenta.engines import engine_named
from fragmenta.envs import Environment
from fragmenta.errors import ConfigError
from fragmenta.graph import Graph
from fragmenta.planner.candidates import Candidate, Space, candidates, engines_here, env_modes
from fragmenta.planner.collecting import without_collecting
from fragmenta.planner.efficiency import Goal
from fragmenta.planner.memory import FragmentMemory, memory_of
from fragmenta.planner.search import BRIEF, CLEARLY, Prediction, Predictor, search
from fragmenta.policies import POLICIES, Cluster, Policy
from fragmenta.policies.machines import Machines

SHOWN = 8
"""So many candidates are simulated in detail: half of them the best, the other half the best that may be chosen."""
WORTH_FEWER = 0.5
"""Distribution policies that on all devices reach this share of the fastest are compared on fewer, too."""
SIMULATED = 4
"""Replicas of a fragment that are simulated to compare candidates for machines that are not here."""
ALIKE = 1.15
"""Ways to step environments that take up to so many times as long as the fastest are compared in whole plans."""
FEW_DEVICES = 8
"""On described machines with more devices, what shares one is always merged, so that there is less to compare."""


@dataclasses.dataclass(frozen=True)
class Compared:
    """A candidate with what it would do and need."""

    prediction: Prediction
    memory: tuple[FragmentMemory, ...]
    steps_needed: float
    """Until a return, as a multiple of those of the plain program."""

    @property
    def candidate(self) -> Candidate:
        """What was predicted."""
        return self.prediction.candidate

    @property
    def steps_per_second(self) -> float:
        """As predicted."""
        return self.prediction.steps_per_second

    def may_be_chosen(self, goal: Goal) -> bool:
        """Whether it keeps the result, or need not."""
        return self.candidate.keeps_result or goal.objective == "return"


@dataclasses.dataclass(frozen=True)
class PlanComparison:
    """The candidates, the best first, and the choice among them."""

    goal: Goal
    compared: tuple[Compared, ...]
    chosen: Compared
    others: int
    """How many there are besides these."""
    too_large: tuple[str, ...]
    """A line on each that does not fit the memory of its devices."""


def space_here(env: Environment, cluster: Cluster, engine: str | None, policies: Sequence[str | Policy]) -> Space:
    """What to choose from on this machine."""
    engines = engines_here(env, engine, cluster)
    return Space(tuple(policies or POLICIES), engines, (), (0, 1), (True, False), env_modes(env))


def space_elsewhere(
    machines: Machines, num_envs: int, engine: str | None, policies: Sequence[str | Policy], replicas: Sequence[int]
) -> Space:
    """What to choose from on described machines: threads on one node, Ray on several. Unless numbers of replicas are
    given, those of all devices and of one node's, or the next smaller ones that divide the environments."""
    devices, several = machines.devices, len(machines.nodes) > 1
    if several and engine not in (None, "ray"):
        raise ConfigError(f"engine is '{engine}', which runs on one node, but there are {len(machines.nodes)}: use ray")
    name = engine or ("ray" if several else "local")
    cluster = Cluster(devices, apart=engine_named(name).apart, machines=machines)
    wanted = (len(devices), len(machines.nodes[0].devices), 1)
    counts = [max(n for n in range(1, most + 1) if num_envs % n == 0) for most in wanted]
    chosen = tuple(replicas) or tuple(sorted(set(counts)))
    merges = (True, False) if len(devices) <= FEW_DEVICES else (True,)
    return Space(tuple(policies or POLICIES), ((name, cluster.apart, cluster),), chosen, (0, 1), merges)


def options_in(algorithm: Algorithm, env: Environment, graph: Graph, space: Space) -> list[Candidate]:
    """All candidates; ConfigError with what is wrong with one if none can run."""
    options = list(candidates(algorithm, env, graph, space))
    if not options:
        _, apart, cluster = space.engines[0]
        whole = dataclasses.replace(cluster, replicas=(space.replicas or (1,))[-1], apart=apart)
        plan = project(graph, space.policies[0], whole)  # says what is wrong
        kind = type(algorithm).__name__
        raise ConfigError(f"{kind} does not declare allows_lag, but distribution policy '{plan.policy}' lags behind")
    return options


@without_collecting()
def options_elsewhere(
    predictor: Predictor, algorithm: Algorithm, env: Environment, graph: Graph, space: Space
) -> list[Candidate]:
    """The candidates for described machines: on all devices every distribution policy, on fewer the simplest, and those
    that are fast on all."""
    most = dataclasses.replace(space, replicas=space.replicas[-1:])
    options = options_in(algorithm, env, graph, most)
    rates = {option.policy: predictor.rate(option, SIMULATED) for option in options if option.keeps_result}
    simplest = next(iter(rates), None)
    least = WORTH_FEWER * max(rates.values(), default=0.0)
    fast = tuple(policy for policy, rate in rates.items() if rate >= least or policy == simplest)
    fewer = dataclasses.replace(space, replicas=space.replicas[:-1], policies=fast or space.policies, lags=(0,))
    return [*(candidates(algorithm, env, graph, fewer) if fewer.replicas else ()), *options]


def compare_here(
    predictor: Predictor, options: Sequence[Candidate], goal: Goal, seconds: float, at_least: int = 0
) -> PlanComparison:
    """Compare candidates on this machine; the promising ones are measured for up to so many seconds, and `at_least` so
    many of the best however long it takes."""
    fits, too_large = _fitting(predictor, _with_fast_stepping(predictor, options))
    ordered = _ordered(search(predictor, fits, seconds), goal)
    while unknown := [
        p for p in _eligible(ordered, goal)[:at_least] if p.is_estimate and predictor.measure(p.candidate, math.inf)
    ]:
        again = {id(prediction): predictor.predict(prediction.candidate) for prediction in unknown}
        ordered = _ordered([again.get(id(p), p) for p in ordered], goal)
    return _comparison(predictor, fits, ordered, too_large, goal)


@without_collecting()
def compare_elsewhere(predictor: Predictor, options: Sequence[Candidate], goal: Goal) -> PlanComparison:
    """Compare candidates for machines that are only described, by estimates; the choice is simulated in full."""
    fits, too_large = _fitting(predictor, options)
    ranked = sorted(fits, key=lambda option: -goal.value(predictor.rate(option, SIMULATED), option.plan))
    rows = ranked[:SHOWN]
    if not any(option.keeps_result for option in rows):
        rows = rows + [option for option in ranked if option.keeps_result][:1]
    briefly = [predictor.predict(option, *((SIMULATED, BRIEF) if option.keeps_result else ())) for option in rows]
    comparison = _comparison(predictor, fits, _ordered(briefly, goal), too_large, goal)
    chosen = comparison.chosen
    exact = dataclasses.replace(chosen, prediction=predictor.predict(chosen.candidate))
    compared = tuple(exact if one is chosen else one for one in comparison.compared)
    return dataclasses.replace(comparison, compared=compared, chosen=exact)


def _with_fast_stepping(predictor: Predictor, options: Sequence[Candidate]) -> list[Candidate]:
    """The candidates without those that differ from another one only in a slower way to step environments."""
    fastest: dict[int, float] = {}
    for option in options:
        fastest[id(option.plan)] = min(fastest.get(id(option.plan), math.inf), predictor.lane_seconds(option))
    return [option for option in options if predictor.lane_seconds(option) <= ALIKE * fastest[id(option.plan)]]


def _fitting(predictor: Predictor, options: Sequence[Candidate]) -> tuple[list[Candidate], list[str]]:
    """Those that fit the memory of their devices, and a line on each of the others."""
    fits, lines = [], []
    for option in options:
        if problem := predictor.shortage(option):
            lines.append(f"{option.description}: {problem}")
        else:
            fits.append(option)
    if not fits:
        raise ConfigError(f"no plan fits the memory: {lines[0]}; use fewer environments, or more devices")
    return fits, lines


def _ordered(predictions: Sequence[Prediction], goal: Goal) -> list[Prediction]:
    """The best first."""
    return sorted(predictions, key=lambda prediction: -_value(prediction, goal))


def _value(prediction: Prediction, goal: Goal) -> float:
    return goal.value(prediction.steps_per_second, prediction.candidate.plan, prediction.simulation.lag)


def _eligible(ordered: Sequence[Prediction], goal: Goal) -> list[Prediction]:
    """Those that may be chosen: for speed the ones that keep the result, if there are any, for a return all."""
    is_free = goal.objective == "return"
    return [one for one in ordered if is_free or one.candidate.keeps_result] or list(ordered)


def _comparison(
    predictor: Predictor,
    options: list[Candidate],
    ordered: Sequence[Prediction],
    too_large: Sequence[str],
    goal: Goal,
) -> PlanComparison:
    """Choose one of those that may be chosen."""
    eligible = _eligible(ordered, goal)
    measured = [prediction for prediction in eligible if not prediction.is_estimate] or eligible
    best_value = max(_value(prediction, goal) for prediction in measured)
    near = [prediction for prediction in measured if _value(prediction, goal) * CLEARLY >= best_value]
    order = {id(option): i for i, option in enumerate(options)}
    best = min(near, key=lambda prediction: order[id(prediction.candidate)])  # the simplest comes first
    worth_a_row = {id(one): one for one in (best, *ordered[: SHOWN // 2], *eligible[: SHOWN // 2], *ordered)}
    rows = _ordered(list(worth_a_row.values())[:SHOWN], goal)
    compared = tuple(
        Compared(
            one,
            tuple(memory_of(one.candidate.plan, predictor.costs(one.candidate))),
            goal.steps_needed(one.candidate.plan, one.simulation.lag),
        )
        for one in rows
    )
    chosen = next(one for one in compared if one.prediction is best)
    return PlanComparison(goal, compared, chosen, len(options) - len(rows), tuple(too_large))
