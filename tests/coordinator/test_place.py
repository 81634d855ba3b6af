"""Invalid placements, and the error messages for them."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fragmenta import (
    PPO,
    Algorithm,
    Cluster,
    ConfigError,
    Delivery,
    Environment,
    Fragment,
    make,
    project,
    stage,
    trace,
)
from fragmenta.rl import keys_by_index
from helpers import assert_same, cpu_cluster, plain, planned, run_plan

ONE = Cluster(("cpu:0", "cpu:1"))
SMALL = PPO(num_envs=8, horizon=8, hidden=(8,))


def refused(fragments: list[Fragment], algorithm: Algorithm = SMALL) -> str:
    with pytest.raises(ConfigError) as caught:
        project(trace(algorithm, "CartPole-v1"), lambda stages, cluster: fragments, ONE, merge=False)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_stage_left_out() -> None:
    assert "stage 'step' is in no fragment" in refused([Fragment("all", ("act", "learn"), ("cpu:0",))])
    message = refused([Fragment("all", ("act", "step"), ("cpu:0",))])
    assert "stage 'learn' is in no fragment" in message
    assert "gradient, apply" in message


def test_a_stage_that_does_not_exist() -> None:
    message = refused([Fragment("all", ("act", "step", "lern"), ("cpu:0",))])
    assert "unknown stage 'lern': did you mean 'learn'?" in message


def test_a_stage_placed_twice() -> None:
    twice = [Fragment("a", ("act", "step"), ("cpu:0",)), Fragment("b", ("step", "learn"), ("cpu:0",))]
    assert "stage 'step' is placed in 2 fragments" in refused(twice)
    nested = [Fragment("a", ("act", "step", "learn"), ("cpu:0",)), Fragment("b", ("apply",), ("cpu:0",))]
    assert "'learn' and 'apply' within it are both placed" in refused(nested)


def test_replicas_devices_and_names() -> None:
    everything = ("act", "step", "learn")
    assert "the nearest that do are 2 and 4 replicas, or 6 or 9 environments" in refused(
        [Fragment("all", everything, ("cpu:0",), 3, "envs")]
    )
    assert "needs at least 1" in refused([Fragment("all", everything, ("cpu:0",), 0, "envs")])
    assert "unknown device 'cpu:7'" in refused([Fragment("all", everything, ("cpu:7",))])
    assert "choose one of envs, agents" in refused([Fragment("all", everything, ("cpu:0",), 2, "time")])
    assert "2 replicas of fragment 'all' do not divide 1 agents" in refused(
        [Fragment("all", everything, ("cpu:0",), 2, "agents")]
    )
    unheard = Fragment("all", everything, ("cpu:0",), delivery=(Delivery("learner", "latest"),))
    assert "unknown fragment 'learner'" in refused([unheard])
    same = [Fragment("a", ("act", "step"), ("cpu:0",)), Fragment("a", ("learn",), ("cpu:0",))]
    assert "fragment names must be unique" in refused(same)


@dataclasses.dataclass(frozen=True)
class Plain(Algorithm):
    """The actor sends a mean over all environments, and may draw noise from one shared key."""

    noise: bool = False

    def init(self, env: Environment, key: jax.Array) -> dict[str, Any]:
        world = env.reset(keys_by_index(key, self.num_envs))
        return {"world": world, "weights": jnp.zeros(()), "key": key}

    def params(self, state: dict[str, Any]) -> Any:
        return state["weights"]

    @stage
    def act(self, observation: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        drawn = jax.random.uniform(key, observation.shape[:1]) if self.noise else observation[:, 0]
        return (drawn > 0.5).astype(jnp.int32), jnp.mean(observation)

    @stage
    def learn(self, weights: jax.Array, average: jax.Array, reward: jax.Array) -> jax.Array:
        return weights + (jnp.sum(reward) if self.noise else average)

    def iterate(self, env: Environment, state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, jax.Array]]:
        action, average = self.act(state["world"].observation, state["key"])
        world, transition = env.step(state["world"], action)
        weights = self.learn(state["weights"], average, transition.reward)
        return state | {"world": world, "weights": weights}, {"weights": weights}


def replicated_actor(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    actor = Fragment("actor", ("act", "step"), ("cpu:0", "cpu:1"), replicas=2, axis="envs")
    return [actor, Fragment("learner", ("learn",), ("cpu:0",))]


@pytest.mark.full
def test_a_mean_leaves_replicas_as_partial_sums() -> None:
    algorithm, env = Plain(num_envs=8), make("CartPole-v1")
    plan = planned(algorithm, env, replicated_actor, cpu_cluster(2, 2), merge=False)
    assert "send average f32[] -> learner  [Reduce, 8 B]" in str(plan)
    assert not plan["actor"].together
    assert_same(plain(algorithm, env, 2)[0], run_plan(plan, algorithm, env, 2)[0], 1e-6)


@pytest.mark.full
def test_each_replica_takes_its_part_of_noise_from_a_shared_key() -> None:
    algorithm, env = Plain(num_envs=8, noise=True), make("CartPole-v1")
    plan = planned(algorithm, env, replicated_actor, cpu_cluster(2, 2), merge=False)
    assert not plan["actor"].exchanges()
    assert_same(plain(algorithm, env, 2)[0], run_plan(plan, algorithm, env, 2)[0], 1e-6)


@dataclasses.dataclass(frozen=True)
class Branching(Plain):
    """Stages inside `cond` and `while`."""

    def iterate(self, env: Environment, state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, jax.Array]]:
        def turn(carry: Any) -> Any:
            count, world, _ = carry
            action, average = self.act(world.observation, state["key"])
            world, _ = env.step(world, action)
            return count + 1, world, average

        start = (jnp.zeros((), jnp.int32), state["world"], jnp.zeros(()))
        _, world, average = jax.lax.while_loop(lambda carry: carry[0] < 3, turn, start)
        weights = jax.lax.cond(
            average > -1e9,
            lambda w: self.learn(w, average, jnp.zeros(2)),
            lambda w: w,
            state["weights"],
        )
        return state | {"world": world, "weights": weights}, {"weights": weights}


def test_stages_inside_while_and_cond_work_where_they_stay_together() -> None:
    algorithm, env = Branching(num_envs=8), make("CartPole-v1")
    plan = planned(algorithm, env, "single_learner_coarse", cpu_cluster(2, 1), merge=True)
    assert len(plan.programs) == 2
    assert_same(plain(algorithm, env, 5)[0], run_plan(plan, algorithm, env, 5)[0], 1e-6)


def test_stages_inside_while_are_refused_where_a_policy_parts_them() -> None:
    with pytest.raises(ConfigError, match="inside one while, which cannot be split across fragments"):
        project(trace(Branching(num_envs=8), "CartPole-v1"), "single_learner_fine", ONE, merge=False)


@dataclasses.dataclass(frozen=True)
class Loners(Algorithm):
    """Agents that learn each for itself."""

    def init(self, env: Environment, key: jax.Array) -> dict[str, Any]:
        world = env.reset(keys_by_index(key, self.num_envs))
        return {"world": world, "weights": jnp.zeros(world.observation.shape[1])}

    @stage
    def act(self, weights: jax.Array, observation: jax.Array) -> jax.Array:
        return (observation[..., 0] > weights).astype(jnp.int32)

    @stage
    def learn(self, weights: jax.Array, reward: jax.Array) -> jax.Array:
        return weights + jnp.mean(reward, axis=0)

    def iterate(self, env: Environment, state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, jax.Array]]:
        action = self.act(state["weights"], state["world"].observation)
        world, transition = env.step(state["world"], action)
        return {"world": world, "weights": self.learn(state["weights"], transition.reward)}, {
            "finished_episodes": jnp.zeros(())  # its own, so that replicas of environments need not meet for a sum
        }


@pytest.mark.full
@pytest.mark.parametrize("replicas", [1, 2])
def test_replicas_along_different_axes_exchange_all_with_all(replicas: int) -> None:
    algorithm, env = Loners(num_envs=4), make("ProbeTeam")
    plan = planned(algorithm, env, "environments", cpu_cluster(4, replicas), merge=False)
    assert ("AllToAll" in str(plan)) == (replicas == 2)
    assert_same(plain(algorithm, env, 3)[0], run_plan(plan, algorithm, env, 3)[0], 1e-6)
