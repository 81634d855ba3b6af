"""Decides how to run an algorithm on this machine, where the user leaves that open."""

import dataclasses
import hashlib
from typing import Any

from fragmenta.algorithms import Algorithm
from fragmenta.engines import engine_named
from fragmenta.engines.base import EngineOptions
from fragmenta.engines.this_machine import this_machine
from fragmenta.envs import Environment
from fragmenta.graph import Graph
from fragmenta.planner.candidates import Candidate, Space, candidate_of, candidates, identity_of
from fragmenta.planner.predicting import predictor
from fragmenta.planner.profile import Profile, profile_here
from fragmenta.planner.search import CLEARLY, Prediction, Predictor, search
from fragmenta.policies import POLICIES, Cluster, Policy

SHARE, MOST_SECONDS, LEAST_SECONDS = 0.2, 8.0, 3.0
"""Measuring what may turn out to be slower may take this share of the time of training, at most so many seconds; with
less than the last, it is not worth beginning."""
FIRST_ONLY = 1e-3
"""Seconds in which only the first candidate is measured."""
AGAIN_SECONDS, WORTH_CHANGING = 8.0, 1.15
"""In mid run: how long other plans are measured, and by how much one must be faster to be changed to."""
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


@dataclasses.dataclass(frozen=True)
class Question:
    """What is to be decided: how to run an algorithm on an environment."""

    algorithm: Algorithm
    env: Environment
    graph: Graph
    default: Decision
    """For training that is too short to compare others."""
    devices: tuple[str, ...]
    """All that the engine may use."""
    engine: str | None
    """None if that is to be chosen, too."""
    replicas: int
    """0 if that is to be chosen, too."""
    merge: bool
    must_predict: bool = False
    """Whether the speed is to be predicted even if training is too short to compare others."""


def decide(question: Question) -> Decision:
    """The distribution policy, the replicas, the devices and the engine with which training ends first, of those that
    do not change the result."""
    algorithm, default = question.algorithm, question.default
    profile, space = profile_here(this_machine()), _space(question)
    first = candidate_of(question.graph, default.policy, default.engine, default.cluster, question.merge)
    if first is None:
        return default  # it is refused, with a reason, where it is planned
    key = _note_key(first, question, space)
    if key not in profile.notes:
        predict = predictor(algorithm, question.env, question.graph, profile)
        expected = algorithm.total_steps / predict.expected_rate(first)
        seconds = min(MOST_SECONDS, SHARE * expected)
        if seconds < LEAST_SECONDS and not question.must_predict:
            reason = f"{first.description}, without comparing others: training takes about {max(expected, 1):.0f} s"
            return dataclasses.replace(default, reason=reason)
        options = _options(question, space, predict)
        predictions = search(predict, options, seconds if seconds >= LEAST_SECONDS else FIRST_ONLY) if options else []
        known = {id(p.candidate): p for p in predictions if not p.is_estimate}
        if not known:
            return default
        profile.notes[key] = [_row(known[id(option)]) for option in options if id(option) in known]
        profile.keep()
    return _decision(profile.notes[key], default.cluster, algorithm.total_steps)


def faster(question: Question, current: Decision) -> Decision | None:
    """What is faster by now than the current way to run, by a new measurement; None if nothing is, by so much that a
    change is worth it."""
    first = candidate_of(question.graph, current.policy, current.engine, current.cluster, question.merge)
    assert first is not None
    predict = predictor(question.algorithm, question.env, question.graph, Profile())
    options = _options(question, _space(question), predict)
    others = [option for option in options if identity_of(option) != identity_of(first)]
    predictions = [p for p in search(predict, [first, *others], AGAIN_SECONDS) if not p.is_estimate]
    present = next((p for p in predictions if p.candidate is first), None)
    if present is None or predictions[0].steps_per_second < WORTH_CHANGING * present.steps_per_second:
        return None
    return _decision([_row(predictions[0]), _row(present)], current.cluster, question.algorithm.total_steps)


def _options(question: Question, space: Space, predict: Predictor) -> list[Candidate]:
    """Candidates that keep the result and fit the memory."""
    everything = candidates(question.algorithm, question.env, question.graph, space)
    return [option for option in everything if option.keeps_result and not predict.shortage(option)]


def _space(question: Question) -> Space:
    """What to choose from: with environments on the host also processes, each of which steps some of them."""
    env, default = question.env, question.default
    is_bound = env.host_pool is not None and env.host_pool.spec.bound_here is not None
    engines = [(default.engine, dataclasses.replace(default.cluster, devices=question.devices))]
    if question.engine is None and env.host_pool and not is_bound:
        others = engine_named("processes").cluster(EngineOptions())
        engines.append(("processes", dataclasses.replace(default.cluster, devices=others.devices, apart=True)))
    return Space(
        policies=SYNCHRONOUS,
        engines=tuple((name, cluster.apart, cluster) for name, cluster in engines),
        replicas=(question.replicas,) if question.replicas else (),
        lags=(default.cluster.lag,),
        merge=question.merge,
    )


def _row(prediction: Prediction) -> dict[str, Any]:
    """A prediction as JSON, with what a decision needs."""
    candidate = prediction.candidate
    return {
        "what": candidate.description,
        "policy": candidate.name,
        "engine": candidate.engine,
        "devices": list(candidate.cluster.devices),
        "replicas": candidate.cluster.replicas,
        "apart": candidate.is_apart,
        "rate": prediction.steps_per_second,
    }


def _decision(rows: list[dict[str, Any]], cluster: Cluster, steps: int) -> Decision:
    """The one that ends first; of those that end at about the same time, the first."""

    def seconds(row: dict[str, Any]) -> float:
        return (START_SECONDS if row["apart"] else 0.0) + steps / row["rate"]

    best = min(map(seconds, rows))
    chosen = next(row for row in rows if seconds(row) <= CLEARLY * best)
    reason = f"{chosen['what']}, predicted {chosen['rate']:,.0f} steps/s"
    others = sorted((row for row in rows if row is not chosen), key=seconds)
    if others:
        ratio = chosen["rate"] / others[0]["rate"]
        started = ", whose processes take time to start" if others[0]["apart"] and ratio < 1 else ""
        reason += f", {ratio:.2f} times {others[0]['what']}{started}"
    where = dataclasses.replace(
        cluster, devices=tuple(chosen["devices"]), replicas=chosen["replicas"], apart=chosen["apart"]
    )
    return Decision(chosen["policy"], chosen["engine"], where, reason, chosen["rate"])


def _note_key(first: Candidate, question: Question, space: Space) -> str:
    """Equal where the same predictions hold."""
    env = question.env
    engines = [(name, cluster.devices, cluster.lag, cluster.shards) for name, _, cluster in space.engines]
    pool = env.host_pool.options if env.host_pool else None
    parts = [identity_of(first), question.algorithm.num_envs, env.title, pool, engines, space.replicas, space.merge]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
