"""Buffers of the state are donated if a result can reuse them, and no warning is raised about the others."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from fragmenta import DQN, Algorithm, Cluster, Environment, Fragment, make, stage
from fragmenta.engines.dispatch import compile_plan
from fragmenta.worker.optimize import optimize
from fragmenta.worker.steps import Rounds
from helpers import assert_same, cpu_cluster, plain, planned, run_plan

State = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Renewed(Algorithm):
    """Averages its rows, then recomputes them from what another fragment computes from the mean."""

    def init(self, env: Environment, key: jax.Array) -> State:
        return {"rows": jax.random.normal(key, (self.num_envs, 3)), "count": jnp.zeros(self.num_envs)}

    def params(self, state: State) -> State:
        return state

    @stage
    def sum_up(self, rows: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.mean(rows), count + 1

    @stage
    def judge(self, mean: jax.Array) -> jax.Array:
        return jnp.sin(mean + 1)

    @stage
    def renew(self, verdict: jax.Array, count: jax.Array) -> jax.Array:
        return jnp.cos(verdict + count)[:, None] * jnp.arange(3.0)

    def iterate(self, env: Environment, state: State) -> tuple[State, State]:
        mean, count = self.sum_up(state["rows"], state["count"])
        return {"rows": self.renew(self.judge(mean), count), "count": count}, {}


def judge_elsewhere(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    return [
        Fragment("rows", ("sum_up", "renew"), cluster.devices[: cluster.replicas], cluster.replicas, axis="envs"),
        Fragment("judge", ("judge",), cluster.devices[-1:]),
    ]


@pytest.mark.full
def test_state_that_no_result_can_reuse_is_not_donated() -> None:
    algorithm, env = Renewed(num_envs=4), make("CartPole-v1")
    for replicas in (1, 2):  # a warning is an error in tests
        plan = planned(algorithm, env, judge_elsewhere, cpu_cluster(3, replicas), merge=False)
        assert_same(plain(algorithm, env, 3)[0], run_plan(plan, algorithm, env, 3)[0], 1e-6)


@dataclasses.dataclass(frozen=True)
class Filled(Algorithm):
    """Writes what another fragment computes into a large array, one row per round of a loop."""

    def init(self, env: Environment, key: jax.Array) -> State:
        return {"rows": jnp.zeros((1024, 512)), "count": jnp.zeros((), jnp.int32)}

    def params(self, state: State) -> State:
        return state

    @stage
    def judge(self, count: jax.Array) -> jax.Array:
        return jnp.sin(count + 1.0)

    @stage
    def renew(self, rows: jax.Array, count: jax.Array, verdict: jax.Array) -> jax.Array:
        return rows.at[count % 1024].add(verdict + rows[(count - 1) % 1024])

    def iterate(self, env: Environment, state: State) -> tuple[State, State]:
        def tick(rows: jax.Array, time: jax.Array) -> tuple[jax.Array, None]:
            count = state["count"] + time
            return self.renew(rows, count, self.judge(count)), None

        rows, _ = jax.lax.scan(tick, state["rows"], jnp.arange(8))
        return {"rows": rows, "count": state["count"] + 8}, {"total": jnp.sum(rows)}


def test_a_loop_in_python_reuses_the_memory_of_a_large_carry() -> None:
    algorithm, env = Filled(num_envs=4), make("CartPole-v1")

    def apart(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
        return [Fragment("rows", ("renew",), cluster.devices[:1]), Fragment("judge", ("judge",), cluster.devices[1:])]

    plan = planned(algorithm, env, apart, cpu_cluster(2, 1), merge=False)
    schedule = optimize(plan["rows"], {"rows": 1, "judge": 1})
    (rounds,) = [step for step in schedule.steps if isinstance(step, Rounds)]
    assert len(rounds.donated) == 1
    assert not rounds.copied, "the loop starts with the state itself"
    assert_same(plain(algorithm, env, 3)[0], run_plan(plan, algorithm, env, 3)[0], 1e-6)


@pytest.mark.parametrize("policy", ["replay", "replay_async"])
def test_shards_insert_into_the_memory_of_their_replay(policy: str) -> None:
    algorithm = DQN(num_envs=4, hidden=(8,), buffer_size=20_000, batch_size=8)
    plan = planned(algorithm, make("CartPole-v1"), policy, cpu_cluster(5, 2), merge=False)
    names = [program.fragment.name for program in plan.programs]
    shards = compile_plan(plan)[names.index("replay")]
    observations = algorithm.buffer_size // 2 * 2 * 4 * 4
    for shard in shards:
        reused = max(segment.memory_analysis().alias_size_in_bytes for segment in shard.compiled.values())
        assert reused > observations
