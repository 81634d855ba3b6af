"""Parts of the user's own: networks, optimizers, schedules, functions, and critics that see more."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from fragmenta import DQN, PPO, SAC, ConfigError, make
from helpers import initial_state, plain
from own_parts import Dropping, Flat, Forbidden, Gelu, Normed, first_two, halved, pair, slow_adam

FEW: dict[str, Any] = {"num_envs": 4, "horizon": 4, "epochs": 1, "minibatches": 2, "hidden": (8,), "total_steps": 64}
REPLAY: dict[str, Any] = {"num_envs": 4, "horizon": 2, "updates": 1, "batch_size": 8, "buffer_size": 64, "hidden": (8,)}


class Nnx(nnx.Module):
    """A network in Flax's newer style."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.dense = nnx.Linear(3, 5, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return nnx.relu(self.dense(x))


class Demanding(nn.Module):
    """Cannot be made without an argument."""

    width: int


def encoder(algorithm: Any, env: Any) -> Any:
    state = jax.eval_shape(lambda key: algorithm.init(make(env), key), jax.random.key(0))
    return jax.tree.map(lambda leaf: leaf.shape, algorithm.params(state)["encoder"])


@pytest.mark.parametrize(
    ("network", "shape"),
    [(Gelu, (3, 16)), (Gelu(4), (3, 4)), ("own_parts:Gelu", (3, 16)), (pair, (3, 8)), (Nnx, (3, 5))],
)
@pytest.mark.parametrize("kind", [PPO, SAC])
def test_a_network_replaces_the_encoder(kind: Any, network: Any, shape: tuple[int, int]) -> None:
    settings = FEW if kind is PPO else REPLAY
    algorithm = kind(network=network, **settings)
    algorithm.validate(make("Pendulum-v1"))
    assert shape in jax.tree.leaves(encoder(algorithm, "Pendulum-v1"), is_leaf=lambda x: isinstance(x, tuple))


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Demanding, "give every argument a default"),
        (Flat, r"returns \(8,\) for 2 observations, expected one vector each"),
        ("own_parts:slow_adam", "not a Flax module or a pair of functions"),
        ("own_parts:Gel", "did you mean 'Gelu'"),
        (Normed, "network 'Normed' keeps batch_stats besides its parameters, .* use LayerNorm"),
        (Dropping, "network 'Dropping' draws random numbers, as Dropout does .* use LayerNorm"),
    ],
)
def test_an_unusable_network_is_one_line(network: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PPO(network=network, **FEW).validate(make("CartPole-v1"))


@pytest.mark.parametrize("optimizer", ["rmsprop", "own_parts:slow_adam", slow_adam, "muon"])
def test_optimizers(optimizer: Any) -> None:
    before, after = (plain(DQN(optimizer=name, **REPLAY), make("CartPole-v1"), 20)[0] for name in ("adam", optimizer))
    assert not np.allclose(before.learner.params["q"]["params"]["dense_1"]["kernel"], 0)
    different = (
        before.learner.params["q"]["params"]["dense_1"]["kernel"]
        - after.learner.params["q"]["params"]["dense_1"]["kernel"]
    )
    assert bool(jnp.any(different != 0))


def test_a_transformation_is_an_optimizer_as_it_is() -> None:
    env, rate = make("CartPole-v1"), 0.01
    algorithm = PPO(optimizer=optax.sgd(rate), max_grad_norm=float("inf"), anneal=False, **FEW)
    algorithm.validate(env)
    learner = initial_state(algorithm, env).learner
    ones = jax.tree.map(lambda x: 100.0 * jnp.ones_like(x), learner.params)
    after = algorithm.updated(learner, ones).params
    difference = jax.tree.map(lambda old, new: float(jnp.max(jnp.abs(old - new - 100.0 * rate))), learner.params, after)
    assert max(jax.tree.leaves(difference)) < 1e-5, "neither clipped nor scaled by learning_rate"
    with pytest.raises(ConfigError, match="schedule changes learning_rate, but the optimizer is a transformation"):
        PPO(optimizer=optax.sgd(rate), schedule=("learning_rate=linear:1:0",), **FEW).validate(env)


def test_what_follows_a_schedule() -> None:
    env, rules = (
        make("CartPole-v1"),
        ("entropy_cost=own_parts:halved", "clip=exponential:0.4:0.1", "gamma=cosine:0.8:1"),
    )
    algorithm = PPO(schedule=rules, **FEW)
    algorithm.validate(env)
    state: Any = initial_state(algorithm, env)
    assert float(getattr(algorithm.at(state), "entropy_cost")) == pytest.approx(0.02)  # noqa: B009
    half: Any = state._replace(learner=state.learner._replace(updates=jnp.asarray(4)))
    numbers = [float(getattr(algorithm.at(half), name)) for name in ("entropy_cost", "clip", "gamma")]
    assert numbers == pytest.approx([0.015, 0.2, 0.9])
    assert halved(jnp.asarray(0.5)) == pytest.approx(0.015)


def test_a_learning_rate_of_zero_changes_nothing() -> None:
    algorithm = PPO(schedule=("learning_rate=linear:0:0",), **FEW)
    state, _ = plain(algorithm, make("CartPole-v1"), 2)
    start = initial_state(algorithm, make("CartPole-v1"))
    assert jax.tree.all(jax.tree.map(np.array_equal, state.learner.params, start.learner.params))


def test_functions_of_observations_and_rewards() -> None:
    env = make("CartPole-v1")
    algorithm = DQN(observation_function=first_two, reward_function="own_parts:upside_down", **REPLAY)
    algorithm.validate(env)
    state, metrics = plain(algorithm, env, 30)
    assert state.learner.params["q"]["params"]["dense_1"]["kernel"].shape == (2, 8)
    assert set(np.unique(state.replay.steps.reward)) == {-1.0}
    assert sum(float(record["finished_returns"]) for record in metrics) > 0, "reported returns stay as they are"
    with pytest.raises(ConfigError, match="return one number"):
        plain(DQN(reward_function=lambda step: step.observation, **REPLAY), env, 1)


def test_a_critic_sees_more() -> None:
    algorithm, env = PPO(critic_only=("best",), **FEW), Forbidden()
    algorithm.validate(env)
    params = initial_state(algorithm, env).learner.params
    assert params["policy"]["params"]["kernel_0"].shape[0] == 2
    assert params["value"]["params"]["kernel_0"].shape[0] == 6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": ("gamma",)}, "schedule 'gamma' does not say what changes"),
        ({"schedule": ("nothing=linear:1:0",)}, "unknown hyper-parameter of PPO in schedule 'nothing'"),
        ({"schedule": ("horizon=linear:8:4",)}, "schedule changes horizon, which is 4"),
        ({"schedule": ("gamma=linear:1:2",)}, "gamma is 2.0: it must be from 0 to 1"),
        ({"schedule": ("gamma=linear:1",)}, "needs two numbers after linear"),
        ({"schedule": ("gamma=exponential:1:0",)}, "cannot pass zero"),
        ({"schedule": ("gamma=step",)}, "schedule 'gamma=step' is unknown"),
        ({"optimizer": "adamm"}, "unknown optimizer 'adamm': did you mean 'adam'"),
        ({"optimizer": "own_parts:halved"}, "must return an Optax transformation"),
        (
            {"optimizer": "lbfgs"},
            "'lbfgs' needs more than gradients and parameters .*'value_fn'.*: choose one of Optax",
        ),
        ({"optimizer": optax.lbfgs()}, "needs more than gradients and parameters .*'value_fn'"),
        ({"optimizer": "polyak_sgd"}, "optimizer 'polyak_sgd' does not start from a learning rate: choose one of"),
        ({"schedule": ("gamma=own_parts:too_high_in_the_middle",)}, r"gamma is 1\.\d+: it must be from 0 to 1"),
        ({"schedule": ("gamma=own_parts:in_a_list",)}, "the schedule of gamma returns .* when 0% .* return one number"),
        ({"schedule": ("gamma=own_parts:nothing",)}, "the schedule of gamma returns None when 0% .* return one number"),
        (
            {"schedule": ("gamma=own_parts:of_two",)},
            r"schedule 'own_parts:of_two' takes \(one.*: it is called with one",
        ),
        ({"optimizer": "own_parts:of_two"}, r"optimizer 'own_parts:of_two' takes \(one.*: it is called with one"),
        ({"reward_function": "own_parts:of_two"}, "reward_function 'own_parts:of_two' takes .* called with one"),
        ({"observation_function": "own_parts:of_two"}, "observation_function 'own_parts:of_two' takes .* with one"),
        ({"observation_function": "own_parts:twice"}, "'own_parts:twice' returns tuple: return an array"),
        ({"observation_function": "own_parts:nothing"}, "'own_parts:nothing' returns NoneType: return an array"),
        ({"observation_function": "own_parts:empty"}, r"'own_parts:empty' returns \(0,\) as none: return an array"),
        ({"network": "own_parts:Rounding"}, "'own_parts:Rounding' returns int32, through which there are no gradients"),
        ({"critic_only": ("state",)}, "critic_only is 'state', but it is not part of the observations"),
    ],
)
def test_mistakes_are_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PPO(**{**FEW, **settings}).validate(make("CartPole-v1"))
