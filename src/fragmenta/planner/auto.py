"""Decides how to run an algorithm on this machine, where the user leaves that open."""

import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from fragmenta.algorithms import Algorithm
from fragmenta.engines.this_machine import this_machine
from fragmenta.envs import Environment
from fragmenta.graph import Graph
from fragmenta.planner.candidates import (
    Candidate,
    Space,
    candidate_of,
    candidates,
    engines_here,
    fragments_of,
    identity_of,
    kind_of_plan,
)
from fragmenta.planner.collecting import without_collecting
from fragmenta.planner.predicting import predictor
from fragmenta.planner.profile import Profile, profile_here
from fragmenta.planner.search import CLEARLY, Prediction, Predictor, search
from fragmenta.policies import POLICIES, Cluster, Policy
from fragmenta_host.makers import Pickled

SHARE, MOST_SECONDS, LEAST_SECONDS = 0.2, 5.5, 3.0
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
    """As measured before, or else as predicted; None if nothing was measured."""
    merge: bool = True
    env_mode: str | None = None
    """How environments on the host are stepped; None as their options say."""


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
    user_policies: tuple[str | Policy, ...] = ()
    """Distribution policies of the user's that are compared with the built-in ones."""


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
        profile.notes[key] = [_row(question, known[id(option)]) for option in options if id(option) in known]
        profile.keep()
    return _decision(profile.notes[key], question)


def remember(
    question: Question, predictions: Sequence[Prediction], rates: Mapping[int, float], profile: Profile
) -> None:
    """Keep what was compared elsewhere as the answer to a question, the preferred ones first: `rates` has the steps per
    second of real runs, by the `id` of the candidate. What was measured so earlier is kept, too."""
    default, space = question.default, _space(question)
    first = candidate_of(question.graph, default.policy, default.engine, default.cluster, question.merge)
    known = [p for p in predictions if p.candidate.keeps_result and not p.is_estimate]
    if first is None or not known:
        return
    key = _note_key(first, question, space)
    rows = [_row(question, prediction, rates.get(id(prediction.candidate))) for prediction in known]
    kept = [row for row in profile.notes.get(key, ()) if row.get("measured")]
    for row in kept:
        same = next((one for one in rows if _place(one) == _place(row)), None)
        if same is None:
            rows.append(row)
        else:
            same["measured"] = same["measured"] or row["measured"]
    profile.notes[key] = rows
    profile.keep()


def faster(question: Question, current: Decision) -> Decision | None:
    """What is faster by now than the current way to run, by a new measurement; None if nothing is, by so much that a
    change is worth it."""
    first = candidate_of(question.graph, current.policy, current.engine, current.cluster, question.merge)
    assert first is not None
    predict = predictor(question.algorithm, question.env, question.graph, Profile())
    options = _options(question, _space(question), predict)
    others = [option for option in options if kind_of_plan(option) != kind_of_plan(first)]
    predictions = [p for p in search(predict, [first, *others], AGAIN_SECONDS) if not p.is_estimate]
    present = next((p for p in predictions if p.candidate is first), None)
    if present is None or predictions[0].steps_per_second < WORTH_CHANGING * present.steps_per_second:
        return None
    return _decision([_row(question, one) for one in (predictions[0], present)], question)


def _options(question: Question, space: Space, predict: Predictor) -> list[Candidate]:
    """Candidates that keep the result and fit the memory."""
    everything = candidates(question.algorithm, question.env, question.graph, space)
    with without_collecting():
        return [option for option in everything if option.keeps_result and not predict.shortage(option)]


def _space(question: Question) -> Space:
    """What to choose from: with environments on the host also processes, each of which steps some of them."""
    default = question.default
    cluster = dataclasses.replace(default.cluster, devices=question.devices)
    return Space(
        policies=(*SYNCHRONOUS, *question.user_policies),
        engines=engines_here(question.env, question.engine, cluster),
        replicas=(question.replicas,) if question.replicas else (),
        lags=(default.cluster.lag,),
        merges=(question.merge,),
    )


def _row(question: Question, prediction: Prediction, measured: float | None = None) -> dict[str, Any]:
    """A prediction as JSON, with what a decision needs, and what a run of it showed."""
    candidate = prediction.candidate
    return {
        "what": candidate.description,
        "policy": _policy_key(candidate.policy, question),
        "engine": candidate.engine,
        "devices": list(candidate.cluster.devices),
        "replicas": candidate.cluster.replicas,
        "apart": candidate.is_apart,
        "merge": candidate.merge,
        "env_mode": candidate.env_mode,
        "rate": prediction.steps_per_second,
        "measured": measured,
    }


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    """What distinguishes the row of one candidate from those of others."""
    return tuple(repr(value) for name, value in row.items() if name not in ("rate", "measured"))


def _policy_key(policy: str | Policy, question: Question) -> str:
    """A name for a distribution policy that no other one has: functions that a function makes share one."""
    if isinstance(policy, str):
        return policy
    name = f"{policy.__module__}:{getattr(policy, '__qualname__', policy)}"
    position = next((i for i, other in enumerate(question.user_policies) if other is policy), 0)
    return f"{name} {position}" if "<" in name else name


def _environment_key(env: Environment) -> list[Any]:
    """Equal for environments whose steps take as long: of those on the host, what makes them is a part of it."""
    if env.host_pool is None:
        return [env.title]
    spec, options = env.host_pool.spec, env.host_pool.options
    maker: Any = hashlib.sha256(spec.maker.data).hexdigest() if isinstance(spec.maker, Pickled) else None
    if spec.bound_here:
        maker = os.getpid(), id(spec.bound_here.source)
    return [env.title, options, sorted(spec.arguments.items()), spec.wrappers, spec.stack, maker]


def _decision(rows: list[dict[str, Any]], question: Question) -> Decision:
    """The one that ends first; of those that end at about the same time, the first. Where plans were run, only these
    are compared: what was measured says more than what was predicted."""
    rows = [row for row in rows if row["measured"]] or rows
    verb = "measured" if rows[0]["measured"] else "predicted"
    rates = {id(row): row["measured"] or row["rate"] for row in rows}

    def seconds(row: dict[str, Any]) -> float:
        return (START_SECONDS if row["apart"] else 0.0) + question.algorithm.total_steps / rates[id(row)]

    best = min(map(seconds, rows))
    chosen = next(row for row in rows if seconds(row) <= CLEARLY * best)
    rate = rates[id(chosen)]
    reason = f"{chosen['what']}, {verb} {rate:,.0f} steps/s"
    others = sorted((row for row in rows if row is not chosen), key=seconds)
    if others:
        ratio = rate / rates[id(others[0])]
        started = ", whose processes take time to start" if others[0]["apart"] and ratio < 1 else ""
        reason += f", {ratio:.2f} times {others[0]['what']}{started}"
    where = dataclasses.replace(
        question.default.cluster,
        devices=tuple(chosen["devices"]),
        replicas=chosen["replicas"],
        apart=chosen["apart"],
    )
    policies = {_policy_key(policy, question): policy for policy in question.user_policies}
    policy = policies.get(chosen["policy"]) or chosen["policy"]
    return Decision(policy, chosen["engine"], where, reason, rate, chosen["merge"], chosen["env_mode"])


def _note_key(first: Candidate, question: Question, space: Space) -> str:
    """Equal where the same predictions hold."""
    env = question.env
    engines = [(name, cluster.devices, cluster.lag, cluster.shards) for name, _, cluster in space.engines]
    policies = [
        (_policy_key(policy, question), _placements(policy, question.graph, space)) for policy in question.user_policies
    ]
    count = question.algorithm.num_envs
    parts = [identity_of(first), count, _environment_key(env), engines, space.replicas, space.merges, policies]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _placements(policy: str | Policy, graph: Graph, space: Space) -> list[Any]:
    """What a distribution policy of the user's does on each engine with few and many replicas: its function may change
    under the same name."""
    clusters = [(cluster, count) for _, _, cluster in space.engines for count in (1, 2, len(cluster.devices))]
    return [fragments_of(graph, policy, dataclasses.replace(cluster, replicas=count)) for cluster, count in clusters]
