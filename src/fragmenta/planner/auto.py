"""Decides how to run an algorithm on this machine, where the user leaves that open."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from fragmenta.algorithms import Algorithm
from fragmenta.engines import engine_named
from fragmenta.engines.base import EngineOptions
from fragmenta.engines.this_machine import this_machine
from fragmenta.envs import Environment
from fragmenta.graph import Graph
from fragmenta.planner.candidates import Candidate, Space, candidate_of, candidates
from fragmenta.planner.predicting import predictor
from fragmenta.planner.profile import Profile, profile_here
from fragmenta.planner.search import Prediction, choice, search
from fragmenta.planner.units import units
from fragmenta.policies import POLICIES, Cluster, Policy

SHARE, MOST_SECONDS, LEAST_SECONDS = 0.2, 8.0, 3.0
"""Measuring what may turn out to be slower may take this share of the time of training, at most so many seconds; with
less than the last, it is not worth beginning."""
START_SECONDS = 8.0
"""What starting processes takes, each of which imports JAX and compiles its part."""
SYNCHRONOUS = tuple(name for name in POLICIES if not name.endswith("_async"))
"""Distribution policies that give the result of the plain program: others are for the user to choose."""


@dataclasses.dataclass(frozen=True)
class Decision:
    """How to run, and why."""

    policy: str | Policy
    engine: str
    cluster: Cluster
    reason: str = ""
    """Empty if the user chose."""
    steps_per_second: float | None = None
    """As predicted; None if nothing was measured."""


def decide(
    algorithm: Algorithm,
    env: Environment,
    graph: Graph,
    default: Decision,
    engine: str | None,
    devices: tuple[str, ...],
    replicas: int,
    merge: bool,
) -> Decision:
    """The distribution policy, the replicas, the devices and the engine with which training ends first, of those that
    do not change the result; `default` is for training that is too short to compare others. `devices` are all that the
    engine may use; `engine` is None, and `replicas` 0, where that is to be chosen, too."""
    profile = profile_here(this_machine())
    whole = dataclasses.replace(default, cluster=dataclasses.replace(default.cluster, devices=devices))
    space = _space(env, whole, engine, replicas, merge)
    first = candidate_of(graph, default.policy, default.engine, default.cluster, merge)
    if first is None:
        return default  # it is refused, with a reason, where it is planned
    key = _key(first, algorithm, env, space)
    if note := profile.notes.get(key):
        return _remembered(note, default)
    predict = predictor(algorithm, env, graph, profile)
    expected = algorithm.total_steps / predict.expected_rate(first)
    seconds = min(MOST_SECONDS, SHARE * expected)
    if seconds < LEAST_SECONDS:
        reason = f"{first.description}, without comparing others: training takes only about {max(expected, 1):.0f} s"
        return dataclasses.replace(default, reason=reason)
    options = [option for option in candidates(algorithm, env, graph, space) if option.keeps_result]
    if not options:
        return default
    predictions = [p for p in search(predict, options, seconds) if not p.is_estimate]
    if not predictions:
        return default
    best = choice(predictions, options, lambda p: _total_seconds(p, algorithm.total_steps))
    decision = _decision(best, predictions)
    _remember(profile, key, decision)
    return decision


def _space(env: Environment, default: Decision, engine: str | None, replicas: int, merge: bool) -> Space:
    """What to choose from: with environments on the host also processes, each of which steps some of them."""
    is_bound = env.host_pool is not None and env.host_pool.spec.bound_here is not None
    engines = [(default.engine, default.cluster)]
    if engine is None and env.host_pool and not is_bound:
        others = engine_named("processes").cluster(EngineOptions())
        engines.append(("processes", dataclasses.replace(default.cluster, devices=others.devices, apart=True)))
    return Space(
        policies=SYNCHRONOUS,
        engines=tuple((name, cluster.apart, cluster) for name, cluster in engines),
        replicas=(replicas,) if replicas else (),
        lags=(default.cluster.lag,),
        merge=merge,
    )


def _total_seconds(prediction: Prediction, steps: int) -> float:
    start = START_SECONDS if prediction.candidate.is_apart else 0.0
    return start + steps / prediction.steps_per_second


def _decision(best: Prediction, predictions: list[Prediction]) -> Decision:
    chosen = best.candidate
    rate = f"{best.steps_per_second:,.0f} steps/s"
    others = [p for p in predictions if p is not best]
    second = max(others, key=lambda p: p.steps_per_second, default=None)
    if second is None:
        reason = f"{chosen.description}, predicted {rate}"
    else:
        ratio = best.steps_per_second / second.steps_per_second
        reason = f"{chosen.description}, predicted {rate}, {ratio:.2f} times {second.candidate.description}"
    return Decision(chosen.policy, chosen.engine, chosen.cluster, reason, best.steps_per_second)


def _key(first: Candidate, algorithm: Algorithm, env: Environment, space: Space) -> str:
    """Equal where the same decision is to be made."""
    engines = [(name, cluster.devices, cluster.lag, cluster.shards) for name, _, cluster in space.engines]
    pool = env.host_pool.options if env.host_pool else None
    work = sorted(unit.identity for schedule in first.schedules.values() for unit in units(schedule, first.is_apart))
    parts = [work, algorithm.num_envs, env.title, pool, engines, space.replicas, space.merge]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _remember(profile: Profile, key: str, decision: Decision) -> None:
    cluster = decision.cluster
    note = {
        "policy": decision.policy,
        "engine": decision.engine,
        "devices": cluster.devices,
        "replicas": cluster.replicas,
        "apart": cluster.apart,
        "reason": decision.reason,
        "steps_per_second": decision.steps_per_second,
    }
    profile.notes[key] = json.loads(json.dumps(note))
    profile.keep()


def _remembered(note: Mapping[str, Any], default: Decision) -> Decision:
    cluster = dataclasses.replace(
        default.cluster, devices=tuple(note["devices"]), replicas=note["replicas"], apart=note["apart"]
    )
    return Decision(note["policy"], note["engine"], cluster, note["reason"], note["steps_per_second"])
