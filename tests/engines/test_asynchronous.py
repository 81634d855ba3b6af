"""Fragments that do not wait for each other: first come, first served, and staleness stays within its bound."""

import dataclasses
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import pytest

import fragmenta
from algorithms.test_dqn import PROBE, values
from asynchronous import ACTORS, Tardy, batches_per_second, cluster, start_and_stop
from fragmenta import (
    A2C,
    DQN,
    IMPALA,
    PPO,
    QMIX,
    R2D2,
    SAC,
    TD3,
    Cluster,
    ConfigError,
    Delivery,
    DiscreteSAC,
    Fragment,
    RunOptions,
    make,
)
from fragmenta.algorithms.actor_critic import State
from fragmenta.engines import LocalEngine
from fragmenta.engines.in_flight import fits
from fragmenta.envs.probes import ProbeTeam
from fragmenta.rl import split_each
from helpers import assert_same, cpu_cluster, initial_state, planned, run_plan
from own_parts import Forbidden

SMALL = IMPALA(num_envs=8, horizon=8, hidden=(8,))
KINDS = [(A2C, "central_async"), (IMPALA, "single_learner_async")]


@pytest.mark.full
def test_an_iteration_that_is_shorter_than_the_processes_need_to_start_ends(tmp_path: Path) -> None:
    flags = "--num-envs 8 --horizon 8 --total-steps 64 --policy single_learner_async --replicas 1 --cpu-devices 4"
    flags += f" --engine processes --no-merge --normalize-rewards --run-dir {tmp_path / 'run'}"
    command = [sys.executable, "-m", "fragmenta.cli.main", "train", "ppo_gru", "Pendulum-v1", *flags.split()]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert ended.returncode == 0, ended.stderr
    assert "episodes, 64 steps" in ended.stdout


@pytest.mark.full
def test_a_slow_actor_does_not_slow_down_the_others() -> None:
    rates = batches_per_second(Tardy(num_envs=8, seconds=0.01, slow_seconds=0.5), 60)
    other_rates = [rates[f"actor[{i}]"] for i in range(1, ACTORS)]
    assert min(other_rates) > 3 * rates.get("actor[0]", 0.0)


@pytest.mark.full
def test_a_bound_on_staleness_is_never_exceeded() -> None:
    def lags(bound: int | None) -> list[int]:
        options = cluster(max_lag=bound)
        result = fragmenta.train(
            SMALL, "CartPole-v1", policy="single_learner_async", cluster=options, total_steps=4_000
        )
        assert result.summary["lag_max"] == max(record["lag"] for record in result.metrics)
        return [record["lag"] for record in result.metrics]

    assert max(lags(None)) > 1, "with four actors nobody waits, so some batches must be older: the bound has work to do"
    assert max(lags(1)) <= 1
    assert max(lags(0)) == 0


@pytest.mark.brief("1")
@pytest.mark.parametrize("actors", [1, ACTORS])
def test_every_batch_counts_once_and_steps_add_up(actors: int) -> None:
    where = cluster(actors)
    result = fragmenta.train(SMALL, "CartPole-v1", policy="single_learner_async", cluster=where, total_steps=1_024)
    assert result.summary["iterations"] == 1_024 * actors // SMALL.steps_per_iteration
    assert result.summary["total_steps"] == 1_024
    assert {record["source"] for record in result.metrics} <= {f"actor[{i}]" for i in range(actors)}
    assert "return_mean" in result.metrics[-1], "the learner reports, not an actor that runs at its own pace"


@pytest.mark.full
@pytest.mark.parametrize(("algorithm", "policy"), [pytest.param(*KINDS[0], marks=pytest.mark.full), KINDS[1]])
def test_learns_asynchronously(algorithm: Any, policy: str) -> None:
    probe = algorithm(num_envs=16, horizon=8, learning_rate=5e-3, hidden=(32,), total_steps=40_000)
    result = fragmenta.train(probe, "ProbeAction", policy=policy, cluster=cluster(2))
    assert result.summary["return_mean"] > 0.9
    env, params = make("ProbeAction"), result.params
    policy_now = probe.policy(env, params, probe.encode(env, params, jax.numpy.asarray([[1.0], [-1.0]])))
    assert float(jax.numpy.exp(policy_now.log_prob(jax.numpy.asarray([1, 0]))).min()) > 0.9


@pytest.mark.full
@pytest.mark.parametrize(
    ("env", "expected"), [("ProbeAction", {-1.0: [1, -1], 1.0: [-1, 1]}), ("ProbeDiscount", {0.0: [0.9], 1.0: [1.0]})]
)
def test_learns_known_values_from_an_asynchronous_replay(env: str, expected: dict[float, list[float]]) -> None:
    result = fragmenta.train(
        PROBE, env, policy="replay_async", cluster=cpu_cluster(5, 2), options=RunOptions(merge=False), prioritized=True
    )
    assert {record["source"] for record in result.metrics} == {"replay[0]", "replay[1]"}
    for observation, wanted in expected.items():
        known = values(result, env, observation)
        assert (known if len(wanted) > 1 else [max(known)]) == pytest.approx(wanted, abs=0.15)


def check_ratios(algorithm: Any, result: Any, starts_after: int) -> dict[str, int]:
    """Each record has what its shard gave to the learner so far, per step that it got; returns records by shard."""
    updates, taken = algorithm.updates, algorithm.steps_per_iteration
    counts: dict[str, int] = {}
    learned = 0
    for record in result.metrics:
        inserts = counts[record["source"]] = counts.get(record["source"], 0) + 1
        draws = max(0, inserts - starts_after)
        learned += draws > 0
        assert record["replay_ratio"] == pytest.approx(draws / inserts * updates * algorithm.batch_size / taken)
    assert int(result.state.learner.updates) == learned * updates
    return counts


class SlowActor(DQN):
    """The actor with environment 0 takes its time."""

    def exploring(self, state: Any, steps: Any) -> Any:
        epsilon = super().exploring(state, steps)
        return jax.pure_callback(_wait, jax.ShapeDtypeStruct(epsilon.shape, epsilon.dtype), epsilon, state.env_index)


def _wait(epsilon: Any, index: Any) -> Any:
    time.sleep(0.05 if index[0] == 0 else 0.0)
    return epsilon


def test_the_replay_ratio_is_that_of_each_shard_although_one_actor_is_slow() -> None:
    algorithm = SlowActor(ladder=True, **REPLAY)
    result = fragmenta.train(
        algorithm, "CartPole-v1", policy="replay_async", cluster=cpu_cluster(1, 2), total_steps=1_600
    )
    counts = check_ratios(algorithm, result, starts_after=2)
    assert counts["replay[1]"] > 2 * counts["replay[0]"] > 4, "nobody waits for the slow one"


REPLAY = {"num_envs": 8, "horizon": 2, "hidden": (8,), "batch_size": 16, "buffer_size": 128, "learning_starts": 32}


@pytest.mark.brief("dqn-prioritized", "r2d2", "qmix", "sac-discrete-masked")
@pytest.mark.parametrize(
    ("algorithm", "env"),
    [
        pytest.param(DQN(prioritized=True, ladder=True, **REPLAY), "CartPole-v1", id="dqn-prioritized"),
        pytest.param(DQN(**REPLAY), "CartPole-v1", id="dqn"),
        pytest.param(SAC(**REPLAY), "Pendulum-v1", id="sac"),
        pytest.param(TD3(prioritized=True, **REPLAY), "Pendulum-v1", id="td3-prioritized"),
        pytest.param(R2D2(memory=8, burn_in=1, length=2, **REPLAY), "ProbeMemory", id="r2d2"),
        pytest.param(QMIX(mixing=8, hypernetwork=8, **REPLAY), ProbeTeam(agents=2), id="qmix"),
        pytest.param(DiscreteSAC(**REPLAY), Forbidden(), id="sac-discrete-masked"),
    ],
)
def test_actors_shards_and_learner_drift(algorithm: Any, env: Any) -> None:
    result = fragmenta.train(algorithm, env, policy="replay_async", cluster=cpu_cluster(1, 2), total_steps=640)
    assert result.summary["iterations"] == 2 * 640 // algorithm.steps_per_iteration
    assert {record["source"] for record in result.metrics} == {"replay[0]", "replay[1]"}
    assert result.metrics[0]["replay_ratio"] == 0, "the replay is too empty to learn from"
    check_ratios(algorithm, result, starts_after=2)
    assert 0 < result.summary["lag_max"] < 40
    assert int(result.state.learner.updates) > 0
    assert min(result.state.replay.filled) > 0


@dataclasses.dataclass(frozen=True)
class Observed(DQN):
    """Records at which rate each environment explores and after how many steps."""

    def exploring(self, state: Any, steps: Any) -> Any:
        epsilon = super().exploring(state, steps)
        seen = jax.ShapeDtypeStruct(epsilon.shape, epsilon.dtype)
        return jax.pure_callback(_observe, seen, epsilon, state.env_index, steps)


OBSERVED: dict[int, set[float]] = {}
OBSERVED_STEPS: set[int] = set()


def _observe(epsilon: Any, index: Any, steps: Any) -> Any:
    for i, value in zip(index.tolist(), epsilon.tolist(), strict=True):
        OBSERVED.setdefault(i, set()).add(value)
    OBSERVED_STEPS.add(int(steps))
    return epsilon


def test_every_environment_explores_at_its_own_rate_on_any_replica() -> None:
    OBSERVED.clear()
    OBSERVED_STEPS.clear()
    fragmenta.train(
        Observed(ladder=True, **REPLAY),
        "CartPole-v1",
        policy="replay_async",
        cluster=cpu_cluster(1, 2),
        total_steps=64,
    )
    rates = {i: 0.4 ** (1 + i) for i in range(8)}
    assert {i: pytest.approx(rate, rel=1e-5) for i, rate in rates.items()} == {i: min(v) for i, v in OBSERVED.items()}
    assert all(len(values) == 1 for values in OBSERVED.values())
    assert {0, 16, 32} <= OBSERVED_STEPS, "steps of all environments, not of those of a replica"


@pytest.mark.full
def test_starts_and_stops_leave_nothing_behind() -> None:
    threads, memory = start_and_stop(8)
    assert not threads
    assert memory[-1] - memory[2] < 50, f"memory in MB after each: {memory}"


@dataclasses.dataclass(frozen=True)
class Breaking(Tardy):
    """The actor with environment 0 fails in about its third iteration."""

    def iterate(self, env: Any, state: Any) -> Any:
        def fail(weights: Any) -> Any:
            if weights > 5:
                raise RuntimeError("the sensor is broken")
            return weights

        weights = jax.pure_callback(fail, jax.ShapeDtypeStruct((), "float32"), state["weights"])
        return super().iterate(env, {**state, "weights": weights})


@pytest.mark.full
def test_an_actor_that_raises_ends_the_run_at_once() -> None:
    begin = time.monotonic()
    with pytest.raises(Exception, match="the sensor is broken"):
        fragmenta.train(
            Breaking(num_envs=8), "CartPole-v1", policy="single_learner_async", cluster=cluster(), total_steps=100_000
        )
    assert time.monotonic() - begin < 30
    assert not [t for t in threading.enumerate() if t.name.startswith("fragmenta-")]


def run_with_lag(policy_lag: int) -> Any:
    algorithm, env = PPO(num_envs=8, horizon=16, hidden=(16,), total_steps=50_000), make("CartPole-v1")
    options = dataclasses.replace(cpu_cluster(3, 2), lag=policy_lag)
    plan = planned(algorithm, env, "single_learner_coarse", options, merge=True)
    return run_plan(plan, algorithm, env, 6)


@pytest.mark.full
def test_lag_one_is_reproducible_and_exact() -> None:
    """Actors collect with the parameters of the previous iteration; everything else is the plain loop."""
    algorithm, env = PPO(num_envs=8, horizon=16, hidden=(16,), total_steps=50_000), make("CartPole-v1")
    (first, _), (second, _) = run_with_lag(1), run_with_lag(1)
    assert_same(first, second, 0)

    @jax.jit
    def iterate(state: State, acting: Any) -> tuple[State, Any]:
        keys, act_keys, learn_keys = split_each(state.keys, 3)
        world, trajectory, log_prob = algorithm.collect(env, acting, state.world.clear_finished(), act_keys)
        learner, _ = algorithm.learn(env, state.learner, trajectory, log_prob, learn_keys)
        return State(world, learner, keys), state.learner.params

    state = initial_state(algorithm, env)
    acting = state.learner.params
    for _ in range(6):
        state, acting = iterate(state, acting)
    assert_same(state, first, 1e-5)
    with pytest.raises(AssertionError):
        assert_same(state, run_with_lag(0)[0], 1e-5)


def learner_behind(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    late = (Delivery("actor", lag=1),)
    return [
        Fragment("actor", ("act", "step"), ("cpu:1", "cpu:2"), 2, "envs"),
        Fragment("learner", ("normalize", "learn"), ("cpu:0",), delivery=late),
    ]


@pytest.mark.parametrize(("policy", "iterations"), [(learner_behind, 3), ("single_learner_coarse", 1)])
@pytest.mark.full
def test_another_engine_continues_with_values_in_flight(policy: Any, iterations: int) -> None:
    """For whole values, parts that are gathered, and partial sums that are reduced."""
    algorithm, env = PPO(num_envs=4, horizon=4, minibatches=4, hidden=(8,), normalize_rewards=True), make("CartPole-v1")
    plan = planned(algorithm, env, policy, dataclasses.replace(cpu_cluster(3, 2), lag=1), merge=False)
    state: list[Any] = jax.tree.leaves(initial_state(algorithm, env))
    with LocalEngine(plan) as engine:
        engine.begin(state)
        expected = [jax.device_get(report.metrics) for report in engine.run(5)]
        whole = engine.state()
    with LocalEngine(plan) as engine:
        engine.begin(state)
        assert not engine.in_flight()
        metrics = [jax.device_get(report.metrics) for report in engine.run(iterations)]
        state, in_flight = engine.state(), engine.in_flight()
    assert fits(plan, in_flight)
    with LocalEngine(plan) as engine:
        engine.begin(state, in_flight)
        metrics += [jax.device_get(report.metrics) for report in engine.run(5 - iterations)]
        assert_same(whole, engine.state(), 0)
    assert_same(expected, metrics, 0)


def both_deliveries(kind: str, other_kind: str) -> Any:
    def policy(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
        deliveries = (Delivery("learner", kind),), (Delivery("actor", other_kind),)  # pyright: ignore
        return [
            Fragment("actor", ("act", "step"), ("cpu:1", "cpu:2"), 2, "envs", deliveries[0]),
            Fragment("learner", ("learn",), ("cpu:0",), delivery=deliveries[1]),
        ]

    return policy


@dataclasses.dataclass(frozen=True)
class Strict(IMPALA):
    """Does not declare that it tolerates older parameters."""

    allows_lag = False


@pytest.mark.parametrize(
    ("algorithm", "policy", "options", "message"),
    [
        (SMALL, both_deliveries("latest", "every"), {}, "cannot be asynchronous"),
        (SMALL, both_deliveries("every", "any"), {}, "cannot be asynchronous"),
        (DQN(num_envs=8), "single_learner_async", {}, "keeps 'replay.steps.observation' for all environments"),
        (DQN(num_envs=8), "replay_async", {"max_lag": 1}, "learns from steps of any age"),
        (DQN(num_envs=8), "replay_async", {"shards": 4}, "shards is 4, but .* has one shard per actor"),
        (DQN(num_envs=8), "replay_async", {"learners": 2}, "learners is 2, but .* has one learner"),
        (DQN(num_envs=8), "fused", {"shards": 4}, "shards is 4, but distribution policy 'fused' does not use it"),
        (PPO(num_envs=8), "central", {"learners": 3}, "learners is 3, but .* 'central' does not use it"),
        (DQN(num_envs=8), "replay", {"learners": 4}, "4 learners need a device each, but there are 3"),
        (DQN(num_envs=8), "replay", {"shards": 3}, "3 replicas of fragment 'replay' do not divide 8 environments"),
        (DQN(num_envs=8), "replay", {"learners": 0}, "learners is 0: there must be at least 1"),
        (PPO(num_envs=8), "central_async", {}, "32 times per iteration, so it must be delivered 'every'"),
        (SMALL, "fused", {"lag": 1}, "has nothing to overlap"),
        (SMALL, "central", {"max_lag": 1}, "is not asynchronous"),
        (SMALL, "single_learner_async", {"max_lag": -1}, "max_lag is -1: it must be at least 0"),
        (Strict(num_envs=8), "single_learner_async", {}, "allows_lag = True"),
        (Strict(num_envs=8), "single_learner_coarse", {"lag": 1}, "allows_lag = True"),
    ],
)
def test_deliveries_that_cannot_work_are_refused(algorithm: Any, policy: Any, options: Any, message: str) -> None:
    where = Cluster(("cpu:0", "cpu:1", "cpu:2"), 2, **options)
    with pytest.raises(ConfigError, match=message) as caught:
        fragmenta.train(algorithm, "CartPole-v1", policy=policy, cluster=where, total_steps=1_000)
    assert "\n" not in str(caught.value)
