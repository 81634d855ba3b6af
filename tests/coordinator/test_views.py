"""What the replicas of a fragment hold, compute and exchange, and what is refused."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fragmenta import Algorithm, Axis, Cluster, ConfigError, Environment, Fragment, make, project, stage, trace
from fragmenta.graph.layout import PARTIAL, WHOLE, Split
from fragmenta.rl import keys_by_index
from helpers import assert_same, cpu_cluster, plain, planned, run_plan

CARTPOLE = make("CartPole-v1")


@dataclasses.dataclass(frozen=True)
class Loop(Algorithm):
    """Acts with one shared key and learns from all observations; `kind` adds a special case."""

    num_envs: int = 8
    kind: str = ""

    def init(self, env: Environment, key: jax.Array) -> dict[str, Any]:
        world = env.reset(keys_by_index(key, self.num_envs))
        rest = {"rbg": jax.random.key(3, impl="rbg"), "flag": jnp.zeros((), bool)}.get(self.kind, jnp.zeros(()))
        return {"world": world, "weights": jnp.ones(4), "key": key, "rest": rest}

    def params(self, state: dict[str, Any]) -> Any:
        return state["weights"]

    @stage
    def act(self, weights: jax.Array, observation: jax.Array, key: jax.Array) -> jax.Array:
        noise = jax.random.uniform(key, observation.shape[:1])
        return (observation @ weights + noise > 0.5).astype(jnp.int32)

    @stage
    def learn(self, weights: jax.Array, observation: jax.Array, rest: Any) -> Any:
        if self.kind == "flag":
            high = observation[:, 0] > -9.0
            rest = high @ high
        if self.kind == "rbg":
            rest, key = jax.random.split(rest)
            weights = weights + 0.01 * jax.random.normal(key, (4,))
        return weights * 0.9 + 0.1 * observation.mean(axis=0), rest, 5 if self.kind == "number" else jnp.zeros(())

    def iterate(self, env: Environment, state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, jax.Array]]:
        key, draw = jax.random.split(state["key"])
        world, step = env.step(state["world"], self.act(state["weights"], state["world"].observation, draw))
        weights, rest, number = self.learn(state["weights"], step.observation, state["rest"])
        metrics = {"number": number, "spread": step.observation.std(), "ended": world.finished.episodes.sum()}
        return {"world": world, "weights": weights, "key": key, "rest": rest}, metrics


def assert_equals_plain(algorithm: Algorithm, policy: Any, replicas: int, env: Any = CARTPOLE) -> Any:
    """The plan, after asserting that a run under it equals the plain program."""
    plan = planned(algorithm, env, policy, cpu_cluster(8, replicas), merge=False)
    expected, actual = plain(algorithm, env, 3), run_plan(plan, algorithm, env, 3)
    assert_same(expected[0], actual[0], 1e-5)
    assert_same(expected[1], actual[1], 1e-5)
    return plan


@pytest.mark.brief("*-number")
@pytest.mark.parametrize("kind", ["flag", "rbg", "number"])
@pytest.mark.parametrize("policy", ["fused", "single_learner_coarse"])
def test_past_defects(kind: str, policy: str) -> None:
    assert_equals_plain(Loop(kind=kind), policy, 2)


def test_layouts_of_a_replica() -> None:
    plan = project(trace(Loop(), CARTPOLE), "single_learner_coarse", cpu_cluster(3, 2), merge=False)
    actor, graph = plan["actor"], plan.graph
    layouts = {name: actor.layout(v) for name, v in zip(graph.state_names, graph.state_inputs, strict=True)}
    assert layouts["world.observation"] == Split(0)
    assert layouts["weights"] == layouts["key"] == WHOLE
    sums = {i.name: i.producer_layout for i in plan.interfaces if i.producer == "actor"}
    assert sums["ended"] == PARTIAL, "a count of all is the sum of the replicas' counts"
    assert not actor.together, "the deviation is left to the learner, which has every observation"
    assert plan["learner"].layouts == {}


@pytest.mark.full
def test_noise_from_one_key_is_drawn_by_all_replicas_and_each_takes_its_part() -> None:
    plan = assert_equals_plain(Loop(), "fused", 4)
    program = plan["all"]
    assert not [e for e in program.exchanges() if e.kind == "gather"]
    (act,) = [run.node for run, _ in program.runs() if getattr(run.node, "stage", "") == "act"]
    assert act.share.uses_index, "which part it takes depends on the index of the replica"


@dataclasses.dataclass(frozen=True)
class Population(Loop):
    """Independent members, on an axis of the algorithm."""

    members: int = 4

    def axes(self, env: Environment) -> tuple[Axis, ...]:
        population = Axis("population", "members", self.members, lambda n: (dataclasses.replace(self, members=n), env))
        return (*super().axes(env), population)

    def init(self, env: Environment, key: jax.Array) -> dict[str, Any]:
        state = super().init(env, key)
        return state | {"weights": jnp.arange(4.0 * self.members).reshape(self.members, 4) / 7}

    @stage
    def act(self, weights: jax.Array, observation: jax.Array, key: jax.Array) -> jax.Array:
        return (observation @ weights.mean(axis=0) > 0.0).astype(jnp.int32)

    @stage
    def learn(self, weights: jax.Array, observation: jax.Array, rest: Any) -> Any:
        pull = jax.vmap(lambda w: jnp.tanh(w) * observation.mean(axis=0))(weights)
        return weights * 0.9 + pull, rest, weights.max()


@pytest.mark.full
def test_an_axis_of_an_algorithm_needs_no_support_in_the_compiler() -> None:
    def policy(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
        learner = Fragment("learner", ("learn",), ("cpu:1", "cpu:2"), replicas=2, axis="population")
        return [Fragment("actor", ("act", "step"), ("cpu:0",)), learner]

    plan = assert_equals_plain(Population(), policy, 1)
    weights = plan.graph.state_names.index("weights")
    assert plan["learner"].layout(plan.graph.state_inputs[weights]) == Split(0)


@dataclasses.dataclass(frozen=True)
class Centred(Loop):
    """A stage on the host that mixes environments."""

    @stage
    def act(self, weights: jax.Array, observation: jax.Array, key: jax.Array) -> jax.Array:
        def above(x: np.ndarray) -> np.ndarray:
            return (x[:, 0] > np.mean(x[:, 0])).astype(np.int32)

        return jax.pure_callback(above, jax.ShapeDtypeStruct(observation.shape[:1], jnp.int32), observation)


@pytest.mark.full
@pytest.mark.parametrize("policy", ["single_learner_coarse", "multi_learner"])
def test_a_host_stage_that_mixes_environments_gets_them_all(policy: str) -> None:
    assert_equals_plain(Centred(), policy, 2)


def test_free_running_actors_may_not_share_a_key() -> None:
    with pytest.raises(ConfigError, match=r"'key' is one random key for all environments.*keys_by_index"):
        project(trace(Loop(), CARTPOLE), "single_learner_async", cpu_cluster(3, 2), merge=False)


@dataclasses.dataclass(frozen=True)
class Renamed(Algorithm):
    """Its stages have unusual names."""

    num_envs: int = 8
    learns: bool = True

    def init(self, env: Environment, key: jax.Array) -> dict[str, Any]:
        return {"world": env.reset(keys_by_index(key, self.num_envs)), "weights": jnp.ones(4)}

    def params(self, state: dict[str, Any]) -> Any:
        return state["weights"]

    @stage
    def choose(self, weights: jax.Array, observation: jax.Array) -> jax.Array:
        return (observation @ weights > 0).astype(jnp.int32)

    @stage
    def improve(self, weights: jax.Array, rewards: jax.Array) -> jax.Array:
        return weights * 0.9 + rewards.mean()

    def iterate(self, env: Environment, state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, jax.Array]]:
        def tick(world: Any, _: None) -> Any:
            world, step = env.step(world, self.choose(state["weights"], world.observation))
            return world, step.observation[:, 2]

        world, rewards = jax.lax.scan(tick, state["world"], length=3)
        weights = self.improve(state["weights"], rewards) if self.learns else state["weights"] + rewards.mean()
        return {"world": world, "weights": weights}, {}


def test_policies_use_the_loop_that_steps_or_say_what_they_need() -> None:
    plan = assert_equals_plain(Renamed(), "single_learner_coarse", 2)
    assert [p.fragment.stages for p in plan.programs] == [("choose", "step"), ("improve",)]
    with pytest.raises(ConfigError, match="places stages 'gradient' and 'apply', but this algorithm has choose, step"):
        project(trace(Renamed(), CARTPOLE), "central", cpu_cluster(3, 2))
    with pytest.raises(ConfigError, match="places stage 'act' with 'step', but"):
        project(trace(Renamed(learns=False), CARTPOLE), "single_learner_async", cpu_cluster(3, 2))


@dataclasses.dataclass(frozen=True)
class Grows(Renamed):
    """Returns a leaf with a different shape."""

    def iterate(self, env: Environment, state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, jax.Array]]:
        return state | {"weights": jnp.ones((5,))}, {}


def test_a_state_that_changes_its_shape_is_named() -> None:
    message = r"Grows.iterate takes 'weights' as float32\[4\] and returns it as float32\[5\]"
    with pytest.raises(ConfigError, match=message):
        trace(Grows(), CARTPOLE)
