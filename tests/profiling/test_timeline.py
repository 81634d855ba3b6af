"""The timelines of workers, and the Perfetto file written from them, read back with Perfetto's own classes."""

import dataclasses
import json
from typing import Any

import jax
import pytest

from fragmenta import IMPALA, PPO, Plan, make
from fragmenta.engines import LocalEngine
from fragmenta.graph import Operator
from fragmenta.profiling.perfetto import to_perfetto
from fragmenta.profiling.timeline import Crossing, Iteration, Part, Span, Window, WorkerTimeline
from fragmenta.profiling.timings import Timings, bottleneck
from fragmenta.runs.timeline_files import measure
from helpers import cpu_cluster, initial_state, planned
from timelines import Timeline, read_timeline

TINY = PPO(num_envs=4, horizon=8, hidden=(8,), epochs=1, minibatches=2)
FREE = IMPALA(num_envs=4, horizon=8, hidden=(8,))
ITERATIONS, WINDOW = 12, (3, 8)


def record_timelines(
    algorithm: Any, policy: str, replicas: int, env: str = "CartPole-v1", lag: int = 0
) -> tuple[Plan, list[WorkerTimeline]]:
    environment = make(env)
    cluster = dataclasses.replace(cpu_cluster(1 + replicas, replicas), lag=lag)
    plan = planned(algorithm, environment, policy, cluster, merge=False)
    with environment.opened(replicas if env != "CartPole-v1" else 1):
        leaves = jax.tree.leaves(initial_state(algorithm, environment))
        with LocalEngine(plan, 60.0, Window(*WINDOW)) as engine:
            engine.begin(leaves)
            for report in engine.run(ITERATIONS):
                assert all(0 <= fill <= 1 for fill in report.fill.values())
                assert set(report.fill) == {f"{i.producer} -> {i.consumer}" for i in plan.interfaces}
            return plan, engine.timelines()


def check(plan: Plan, timelines: list[WorkerTimeline]) -> Timeline:
    """Assert what holds for every timeline, and return it."""
    timeline = read_timeline(to_perfetto(timelines))
    assert list(timeline.processes.values()) == [program.fragment.name for program in plan.programs]
    assert list(timeline.threads.values()) == [timeline.worker for timeline in timelines]
    for track, name in timeline.threads.items():
        assert timeline.processes[timeline.parents[track]] == name.partition("[")[0]
    for slices in timeline.slices.values():
        assert all(s.category == "iteration" for s in slices if s.depth == 0)
    for ends in timeline.arrows.values():
        (first, begin, sender), (second, end, receiver) = sorted(ends)
        assert (first, second) == ("begin", "end")
        assert begin < end
        assert sender.partition("[")[0] != receiver.partition("[")[0]
    return timeline


@pytest.mark.full
def test_coarse_with_two_actors() -> None:
    plan, timelines = record_timelines(TINY, "single_learner_coarse", 2)
    timeline = check(plan, timelines)
    for slices in timeline.slices.values():
        assert [s.name for s in slices if s.depth == 0] == [f"iteration {i}" for i in range(*WINDOW)]
    assert len([s for s in timeline.slices["learner"] if s.name == "learn"]) == 5
    assert len([s for s in timeline.slices["actor[1]"] if s.name == "loop x8(act, step)"]) == 5
    # Workers that wait for each other record the same iterations, so each value is recorded on both sides.
    crossing = sum(1 if i.operator == Operator.SEND else 2 for i in plan.interfaces) * 5
    assert len(timeline.arrows) == crossing
    assert set(timeline.counters) == {
        f"fill {pair}" for i in (0, 1) for pair in (f"actor[{i}] -> learner", f"learner -> actor[{i}]")
    }
    assert all(0 <= value <= 100 for values in timeline.counters.values() for value in values)
    sends = [s for s in timeline.slices["actor[0]"] if s.name == "send observation to learner"]
    assert [s.details for s in sends] == [
        {"interface": "actor[0] -> learner", "values": "observation f32[8,2,4]", "bytes": 8 * 2 * 4 * 4}
    ] * 5


@pytest.mark.full
def test_fine_has_an_arrow_for_every_step() -> None:
    plan, timelines = record_timelines(TINY, "single_learner_fine", 1)
    timeline = check(plan, timelines)
    assert len([s for s in timeline.slices["env"] if s.name == "step"]) == 5 * 8
    assert len([s for s in timeline.slices["learner"] if s.name == "wait for observation from env"]) == 5 * 8
    assert len(timeline.arrows) == 5 * sum(i.times for i in plan.interfaces)
    assert {s.depth for s in timeline.slices["learner"] if s.category == "wait"} == {2, 3}, "in loop, taking, iteration"


@pytest.mark.full
def test_free_running_actors_are_recorded_together_with_the_learner() -> None:
    plan, timelines = record_timelines(FREE, "single_learner_async", 2)
    timeline = check(plan, timelines)
    learner = [s for s in timeline.slices["learner"] if s.depth == 0]
    assert [s.name for s in learner] == [f"iteration {i}" for i in range(*WINDOW)]
    assert all("lag" in s.details for s in learner)
    assert set(timeline.counters) == {"fill actor -> learner", "fill learner -> actor", "parameter lag of learner"}
    for slices in timeline.slices.values():
        assert all(learner[0].begin <= s.begin for s in slices)
        after = [s for s in slices if s.depth == 0 and s.begin > learner[-1].end]
        assert len(after) <= 1, "the window may close between an actor's look at it and its begin"
    assert any(s.name.startswith("wait for 10 values") for s in timeline.slices["learner"])
    assert timeline.arrows


@pytest.mark.full
def test_fused_shows_its_launches() -> None:
    plan, timelines = record_timelines(TINY, "fused", 1)
    timeline = check(plan, timelines)
    assert not timeline.arrows
    assert not timeline.counters
    launches = [s for s in timeline.slices["all"] if s.category == "burst"]
    assert launches
    assert {s.name for s in launches} == {"loop x8(act, step), learn"}
    assert sum(i.burst for i in timelines[0].iterations) >= 1


@pytest.mark.full
def test_environments_on_the_host() -> None:
    plan, timelines = record_timelines(TINY, "single_learner_coarse", 2, "gymnasium:CartPole-v1")
    timeline = check(plan, timelines)
    steps = [s for s in timeline.slices["actor[0]"] if s.category == "host"]
    assert [s.name for s in steps] == ["step"] * 5 * 8


@pytest.mark.full
def test_timings_add_up_and_survive_json() -> None:
    plan, timelines = record_timelines(TINY, "single_learner_coarse", 2)
    timings = measure(timelines)
    for worker in timings.workers:
        assert worker.iterations == 5
        assert 0 < worker.busy_ms < worker.iteration_ms
        spent = worker.busy_ms + sum(worker.wait_ms.values()) + worker.place_ms
        assert spent <= worker.iteration_ms
        assert worker.rest_ms == pytest.approx(worker.iteration_ms - spent)
    planned_bytes = {(i.producer, i.consumer, i.value.id): i.bytes_per_iteration for i in plan.interfaces}
    assert {(i.producer, i.consumer, i.value): i.bytes for i in timings.interfaces} == planned_bytes
    assert {s.label for s in timings.segments if s.fragment == "actor"} == {"loop x8(act, step)", "glue"}
    assert Timings.from_json(json.loads(json.dumps(timings.as_json()))) == timings
    assert "the busiest fragment is '" in bottleneck(timings)


@pytest.mark.full
def test_a_timeline_can_be_serialised() -> None:
    """It consists of strings and numbers, so that another process can send it in any format."""
    _, timelines = record_timelines(FREE, "single_learner_async", 2)
    received = [rebuild_timeline(json.loads(json.dumps(dataclasses.asdict(timeline)))) for timeline in timelines]
    assert received == timelines
    assert to_perfetto(received) == to_perfetto(timelines)


def rebuild_timeline(data: dict[str, Any]) -> WorkerTimeline:
    parts = [tuple(Part(*part) for part in row[Crossing._fields.index("parts")]) for row in data["crossings"]]
    return WorkerTimeline(
        data["fragment"],
        data["worker"],
        tuple(Iteration(*row) for row in data["iterations"]),
        tuple(Span(*row) for row in data["spans"]),
        tuple(Crossing(*row)._replace(parts=p) for row, p in zip(data["crossings"], parts, strict=True)),
    )


@pytest.mark.full
def test_with_lag_sends_are_paired_with_the_right_receives() -> None:
    """With lag 1 the actor receives the values that the learner sent in the previous iteration."""
    plan, timelines = record_timelines(TINY, "single_learner_coarse", 2, lag=1)
    timeline = check(plan, timelines)
    assert timeline.counters["parameter lag of learner"] == [1.0] * 5
    sends = {(c.channel, c.ticket): c for r in timelines for c in r.crossings if c.sends}
    pairs = [(sends[c.channel, c.ticket], c) for r in timelines for c in r.crossings if (c.channel, c.ticket) in sends]
    assert all(sending.parts == taking.parts for sending, taking in pairs)
    receives = [c for c in timelines[0].crossings if not c.sends]
    assert sum((c.channel, c.ticket) in sends for c in receives) == len(receives) * 4 // 5, "the first were sent before"


@pytest.mark.parametrize(("iterations", "window"), [(1, (0, 1)), (4, (0, 4)), (10, (2, 10)), (1000, (5, 25))])
def test_a_short_run_has_a_window_too(iterations: int, window: tuple[int, int]) -> None:
    chosen = Window.within(iterations)
    assert (chosen.first, chosen.last) == window


@pytest.mark.full
def test_memory_does_not_grow_with_the_run(monkeypatch: Any) -> None:
    monkeypatch.setattr("fragmenta.profiling.timeline.MOST_NOTES", 100)
    _, timelines = record_timelines(TINY, "single_learner_fine", 1)
    assert all(1 <= len(timeline.iterations) < 5 for timeline in timelines)


@pytest.mark.full
def test_an_engine_without_a_window_records_nothing() -> None:
    env = make("CartPole-v1")
    plan = planned(TINY, env, "fused", cpu_cluster(1, 1), merge=True)
    with LocalEngine(plan) as engine:
        engine.begin(jax.tree.leaves(initial_state(TINY, env)))
        assert [report.iteration for report in engine.run(2)] == [0, 1]
        assert engine.timelines() == []
