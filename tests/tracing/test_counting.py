"""Steps are counted in the traced program, and episodes in the world: an author declares and reports neither."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import fragmenta
from fragmenta.envs import Environment


@dataclasses.dataclass(frozen=True)
class Plain(fragmenta.Algorithm):
    """As a new user writes it: no word of steps or episodes."""

    num_envs: int = 4
    horizon: int = 8
    loop: str = "scan"

    def init(self, env: Environment, key: jax.Array) -> Any:
        return {"world": env.reset(jax.random.split(key, self.num_envs)), "weights": jnp.zeros(4), "key": key}

    @fragmenta.stage
    def act(self, weights: jax.Array, observation: jax.Array, key: jax.Array) -> jax.Array:
        return (observation @ weights + jax.random.normal(key, observation.shape[:1]) > 0).astype(jnp.int32)

    @fragmenta.stage
    def learn(self, weights: jax.Array, rewards: jax.Array) -> jax.Array:
        return weights + 0.01 * rewards.mean()

    def iterate(self, env: Environment, state: Any) -> tuple[Any, dict[str, jax.Array]]:
        def tick(world: Any, key: jax.Array) -> Any:
            world, transition = env.step(world, self.act(state["weights"], world.observation, key))
            return world, transition.reward

        key, act_key = jax.random.split(state["key"])
        if self.loop == "while":
            world = jax.lax.while_loop(
                lambda world: world.episode_length.max() < 8, lambda world: tick(world, act_key)[0], state["world"]
            )
            rewards = world.episode_return
        else:
            world, rewards = jax.lax.scan(tick, state["world"], jax.random.split(act_key, self.horizon))
        if self.loop == "nested":
            again = lambda world, keys: jax.lax.scan(tick, world, keys)  # noqa: E731
            world, _ = jax.lax.scan(again, world, jax.random.split(act_key, (3, 5)))
        weights = self.learn(state["weights"], rewards)
        return {"world": world, "weights": weights, "key": key}, {"weight": weights.mean()}

    def params(self, state: Any) -> jax.Array:
        return state["weights"]


@dataclasses.dataclass(frozen=True)
class Declared(Plain):
    loop: str = "while"

    @property
    def steps_per_iteration(self) -> int:
        return 32


@dataclasses.dataclass(frozen=True)
class Clashing(Plain):
    def iterate(self, env: Environment, state: Any) -> tuple[Any, dict[str, jax.Array]]:
        state, metrics = super().iterate(env, state)
        return state, {**metrics, "returns": jnp.full((), 7.0), "episodes": jnp.full((), -1.0)}


@pytest.mark.full
@pytest.mark.parametrize(("loop", "per_iteration"), [("scan", 4 * 8), ("nested", 4 * 8 + 4 * 15)])
def test_steps_are_counted(loop: str, per_iteration: int) -> None:
    result = fragmenta.train(Plain(loop=loop), "CartPole-v1", total_steps=5 * per_iteration)
    assert result.summary["iterations"] == 5
    assert result.summary["total_steps"] == 5 * per_iteration


@pytest.mark.parametrize("policy", ["fused", "single_learner_coarse"])
def test_episodes_come_from_the_world(policy: str) -> None:
    result = fragmenta.train(Plain(), "CartPole-v1", policy, total_steps=32 * 40)
    assert result.summary["return_mean"] > 5
    assert sum(record["episodes"] for record in result.metrics) > 10
    lengths = sum(record["episodes"] * record["length_mean"] for record in result.metrics if record["episodes"])
    assert lengths <= 32 * 40, "every iteration counts only its own episodes"


@pytest.mark.full
def test_every_seed_counts_its_own() -> None:
    result = fragmenta.train(Plain(), "CartPole-v1", total_steps=32 * 20, seeds=3)
    assert result.summary["iterations"] == 20
    assert len({seed["return_mean"] for seed in result.summary["per_seed"]}) == 3


@pytest.mark.full
def test_a_while_loop_asks_for_a_number() -> None:
    with pytest.raises(fragmenta.ConfigError, match="define the property steps_per_iteration of Plain"):
        fragmenta.train(Plain(loop="while"), "CartPole-v1", total_steps=64)
    assert fragmenta.train(Declared(), "CartPole-v1", total_steps=64).summary["iterations"] == 2


@pytest.mark.full
def test_metrics_of_an_author_with_such_names_are_not_mistaken_for_episodes() -> None:
    plain, clashing = (fragmenta.train(kind(), "CartPole-v1", total_steps=32 * 20) for kind in (Plain, Clashing))
    assert clashing.summary["return_mean"] == plain.summary["return_mean"]
    assert {record["returns"] for record in clashing.metrics} == {7.0}
    assert [record["episodes"] for record in clashing.metrics] == [record["episodes"] for record in plain.metrics]


@pytest.mark.parametrize("algorithm", [fragmenta.PPO(), fragmenta.A2C(), fragmenta.IMPALA(), fragmenta.RecurrentPPO()])
def test_shipped_algorithms_know_their_steps(algorithm: Any) -> None:
    """They need the number themselves, to decay the learning rate."""
    assert fragmenta.trace(algorithm, "CartPole-v1").steps == algorithm.steps_per_iteration
