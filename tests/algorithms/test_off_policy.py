"""SAC, TD3, DDPG and REINFORCE reach the known values of probe environments, in all their variants."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragmenta
from fragmenta import DDPG, REINFORCE, SAC, TD3, ConfigError, DiscreteSAC, FastTD3, make
from fragmenta.algorithms.actor_replay import of_critics
from fragmenta.rl import split_each
from fragmenta.rl.value_targets import ReturnForm
from helpers import initial_state

SIZES: dict[str, Any] = {
    "num_envs": 16,
    "batch_size": 64,
    "buffer_size": 8_000,
    "learning_starts": 500,
    "horizon": 2,
    "updates": 4,
    "gamma": 0.9,
    "hidden": (32,),
    "learning_rate": 5e-3,
    "tau": 0.05,
    "total_steps": 9_600,
}
DISCRETE = DiscreteSAC(**SIZES)
C51: dict[str, Any] = {"distribution": "c51", "value_range": (-4.0, 3.0)}
CONTINUOUS: dict[str, Any] = {
    "sac": SAC(**SIZES),
    "td3": TD3(**SIZES),
    "ddpg": DDPG(**SIZES),
    "sac-c51": SAC(normalize_observations=True, **C51, **SIZES),
    "sac-mean": SAC(combine="mean", critic_hidden=(64,), **SIZES),
    "td3-c51": TD3(largest_noise=0.3, **C51, **SIZES),
    "td3-quantile": TD3(distribution="quantile", atoms=11, **SIZES),
    "td3-mean": TD3(combine="mean", distribution="quantile", atoms=11, **SIZES),
    "ddpg-normalized": DDPG(normalize_observations=True, layer_norm=True, **SIZES),
    "fast_td3": FastTD3(**C51, **{**SIZES, "critic_hidden": (64,), "target_noise": 0.2}),
}
FIRST = {"sac": 1.82, "td3": 1.756, "ddpg": 1.9}
"""The value of the first step: 1 and, discounted, that of the second, which has less with noise on its action."""
SEEDS = 3


@pytest.mark.brief("sac", "td3", "ddpg")
@pytest.mark.parametrize("name", CONTINUOUS)
def test_actions_are_found_and_later_rewards_discounted(name: str) -> None:
    algorithm, env = CONTINUOUS[name], make("ProbeTarget")
    kind = name.removeprefix("fast_").split("-")[0]
    result = fragmenta.train(algorithm, env, seeds=SEEDS, progress=False)
    observation = jnp.asarray([[1.0, 0.0], [-1.0, 0.0], [1.0, 1.0], [-1.0, 1.0]])

    @jax.jit
    @jax.vmap
    def known(params: Any) -> Any:
        action, _ = algorithm.decide(env, params, observation, (), (), None)
        return action, algorithm.critic_values(env, params, observation, algorithm.from_env(env, action))

    action, value = known(result.params)
    np.testing.assert_allclose(action[..., 0], np.tile([1.0, -1.0, 1.0, -1.0], (SEEDS, 1)), atol=0.2)
    for critic in np.moveaxis(np.asarray(value), 1, 0):
        np.testing.assert_allclose(critic, np.tile([FIRST[kind]] * 2 + [1.0, 1.0], (SEEDS, 1)), atol=0.12)


def soft_values(result: fragmenta.Result, env: str, observation: float) -> tuple[list[float], float]:
    """The values of both actions and the probability of the second one."""
    algorithm, rows = result.algorithm, jnp.asarray([[observation]])
    assert isinstance(algorithm, DiscreteSAC)
    values = algorithm.action_values(make(env), of_critics(result.params), rows).min(axis=0)[0]
    policy = algorithm.policy(make(env), result.params, rows)
    return values.tolist(), float(jnp.exp(policy.log_prob(jnp.ones(1, jnp.int32)))[0])


@pytest.mark.full
def test_discrete_sac_finds_the_better_action() -> None:
    result = fragmenta.train(DISCRETE, "ProbeAction", progress=False)
    for sign, best in ((1.0, 1), (-1.0, 0)):
        values, second = soft_values(result, "ProbeAction", sign)
        assert values[best] == pytest.approx(1.0, abs=0.1)
        assert values[1 - best] == pytest.approx(-1.0, abs=0.3)
        assert (second > 0.5) == (best == 1)


@pytest.mark.full
def test_discrete_sac_discounts_later_rewards_and_adds_the_entropy() -> None:
    # Both actions are the same, so the policy keeps the entropy log 2, whose weight does not change here.
    algorithm = dataclasses.replace(DISCRETE, learn_temperature=False, temperature=0.1, n_step=1)
    result = fragmenta.train(algorithm, "ProbeDiscount", progress=False)
    last = soft_values(result, "ProbeDiscount", 1.0)[0]
    first = soft_values(result, "ProbeDiscount", 0.0)[0]
    assert last == pytest.approx([1.0, 1.0], abs=0.05)
    assert first == pytest.approx([0.9 * (1.0 + 0.1 * math.log(2))] * 2, abs=0.05)


@pytest.mark.full
def test_reinforce_finds_the_better_action() -> None:
    algorithm = REINFORCE(num_envs=16, horizon=32, learning_rate=5e-3, hidden=(32,), total_steps=60_000)
    result = fragmenta.train(algorithm, "ProbeAction", progress=False)
    env = make("ProbeAction")
    for sign, best in ((1.0, 1), (-1.0, 0)):
        encoded = algorithm.encode(env, result.params, jnp.asarray([[sign]]))
        policy = algorithm.policy(env, result.params, encoded)
        assert math.exp(float(policy.log_prob(jnp.asarray([best]))[0])) > 0.95
        assert float(algorithm.value(result.params, encoded)[0]) == pytest.approx(1.0, abs=0.1)


@pytest.mark.full
def test_the_baseline_of_reinforce_is_the_discounted_return() -> None:
    algorithm = REINFORCE(num_envs=16, horizon=32, gamma=0.9, learning_rate=5e-3, hidden=(32,), total_steps=60_000)
    result = fragmenta.train(algorithm, "ProbeDiscount", progress=False)
    for observation, value in ((0.0, 0.9), (1.0, 1.0)):
        encoded = algorithm.encode(make("ProbeDiscount"), result.params, jnp.asarray([[observation]]))
        assert float(algorithm.value(result.params, encoded)[0]) == pytest.approx(value, abs=0.05)


@pytest.mark.parametrize(("kind", "env"), [(SAC, "ProbeTarget"), (DiscreteSAC, "ProbeAction")])
def test_the_temperature_falls_with_too_much_entropy_and_rises_with_too_little(kind: type[SAC], env: str) -> None:
    algorithm: Any = kind(num_envs=2, batch_size=8, buffer_size=64, hidden=(4,))
    world = make(env)
    state = initial_state(algorithm, world)
    batch = jax.tree.map(lambda x: x[0], algorithm.sample(state.replay, state.keys, jnp.ones(())))
    after = {}
    for name, outputs in OUTPUTS[kind].items():
        actor = state.learner.params["actor"]["params"]
        actor = {"params": {**actor, "kernel_1": jnp.zeros_like(actor["kernel_1"]), "bias_1": jnp.asarray(outputs)}}
        learner = state.learner._replace(params={**state.learner.params, "actor": actor})
        gradients, (_, losses) = algorithm.gradient(world, learner, batch, state.keys)
        after[name] = float(losses["entropy"])
        moved = algorithm.apply(learner, gradients, jnp.asarray(True)).params["log_temperature"]
        assert (moved < learner.params["log_temperature"]) == (name == "much"), (name, after)
    assert after["much"] > after["little"]


OUTPUTS = {SAC: {"much": [0.0, 1.0], "little": [0.0, -1.0]}, DiscreteSAC: {"much": [0.0, 0.0], "little": [9.0, -9.0]}}
"""What the actor says where its entropy is above the one aimed at, and where it is below."""


def test_every_environment_has_noise_of_its_own_by_its_index() -> None:
    algorithm = TD3(num_envs=5, batch_size=10, exploration_noise=0.1, largest_noise=0.5)
    state = initial_state(algorithm, make("Pendulum-v1"))
    noise = algorithm.exploring(state, jnp.zeros(()))[1]
    np.testing.assert_allclose(noise, [0.1, 0.2, 0.3, 0.4, 0.5], rtol=1e-6)
    part = state._replace(env_index=state.env_index[2:4])
    np.testing.assert_allclose(algorithm.exploring(part, jnp.zeros(()))[1], [0.3, 0.4], rtol=1e-6)
    same = dataclasses.replace(algorithm, largest_noise=0.0)
    np.testing.assert_allclose(same.exploring(state, jnp.zeros(()))[1], 0.1)
    steps = jnp.asarray(10**6)

    @jax.jit
    @jax.vmap
    def act(key: jax.Array) -> jax.Array:
        each = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(5))
        return algorithm.act(make("Pendulum-v1"), state.learner.params, jnp.zeros((5, 3)), each, (steps, noise))

    drawn = act(jax.random.split(jax.random.key(0), 500))
    np.testing.assert_allclose(jnp.std(drawn / 2.0, axis=0)[:, 0], noise, rtol=0.15)


def test_moments_are_those_of_the_batches_learned_from() -> None:
    sizes: dict[str, Any] = {"num_envs": 4, "horizon": 4, "updates": 2, "batch_size": 16, "buffer_size": 400}
    algorithm = SAC(hidden=(4,), learning_starts=16, normalize_observations=True, **sizes)
    env = make("Pendulum-v1")
    state, iterate = initial_state(algorithm, env), jax.jit(lambda state: algorithm.iterate(env, state)[0])
    state = iterate(state)
    assert state.moments.number == 0, "it is too early to learn"
    sample, seen = jax.jit(lambda replay, keys: algorithm.sample(replay, keys, jnp.asarray(0.4))), []
    for _ in range(3):
        sample_keys = split_each(state.keys, 4)[2]
        state = iterate(state)
        seen.append(sample(state.replay, sample_keys).observation)
    rows = np.concatenate(seen).reshape(-1, 3)
    assert state.moments.number == len(rows) == 96
    np.testing.assert_allclose(state.moments.mean, rows.mean(axis=0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state.moments.std(), rows.std(axis=0), rtol=1e-3)
    assert np.abs(state.replay.steps.observation).max() > 1.0, "the replay keeps observations as they are"
    params = algorithm.params(state)
    again = algorithm.with_params(initial_state(algorithm, env, seed=1), params)
    for expected, actual in zip(jax.tree.leaves(params), jax.tree.leaves(algorithm.params(again)), strict=True):
        np.testing.assert_array_equal(actual, expected)
    assert "moments" not in again.learner.params


def test_the_mean_and_the_lowest_of_distributions() -> None:
    c51 = ReturnForm("c51", 3, (0.0, 2.0))
    outputs = jnp.log(jnp.asarray([[[0.8, 0.1, 0.1], [0.1, 0.1, 0.8]], [[0.1, 0.8, 0.1], [0.1, 0.8, 0.1]]]))
    np.testing.assert_allclose(c51.mean(outputs), [[0.3, 1.7], [1.0, 1.0]], rtol=1e-5)
    np.testing.assert_allclose(c51.mean(c51.lowest(outputs)), [0.3, 1.0], rtol=1e-5)
    np.testing.assert_allclose(c51.mean(c51.average(outputs)), [0.65, 1.35], rtol=1e-5)
    quantile = ReturnForm("quantile", 2, (0.0, 1.0))
    outputs = jnp.asarray([[[0.0, 2.0], [3.0, 4.0]], [[2.0, 4.0], [0.0, 1.0]]])
    assert quantile.lowest(outputs).tolist() == [[0.0, 2.0], [0.0, 1.0]]
    assert quantile.average(outputs).tolist() == [[1.0, 3.0], [1.5, 2.5]]
    plain = ReturnForm("none", 2, (0.0, 1.0))
    assert plain.size == 1
    assert plain.lowest(jnp.asarray([[[1.0], [4.0]], [[2.0], [3.0]]])).tolist() == [[1.0], [3.0]]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"distribution": "c52"}, "distribution is 'c52': choose one of none, c51, quantile"),
        ({"combine": "max"}, "combine is 'max': choose lowest or mean"),
        ({"value_range": (1.0, 1.0)}, "value_range is 1 to 1 with 51 atoms"),
        ({"critic_hidden": (0,)}, "critic_hidden is .0,.: each width must be at least 1"),
        ({"largest_noise": -1.0}, "largest_noise is -1.0: it must be at least 0"),
    ],
)
def test_a_mistake_is_one_line(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TD3(**wrong).validate(make("Pendulum-v1"))
