"""A subclass can bring its own networks."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

import fragmenta
from fragmenta import A2C, PPO, make


class Residual(nn.Module):
    """Not a plain chain of layers."""

    outputs: int
    output_scale: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Dense(16, name="first")(x)
        x = x + nn.gelu(nn.Dense(16, name="second")(x))
        return nn.Dense(self.outputs, kernel_init=nn.initializers.orthogonal(self.output_scale), name="last")(x)


@dataclasses.dataclass(frozen=True)
class ResidualPPO(PPO):
    def head(self, outputs: int, output_scale: float) -> nn.Module:
        return Residual(outputs, output_scale)


@dataclasses.dataclass(frozen=True)
class ResidualA2C(A2C):
    def head(self, outputs: int, output_scale: float) -> nn.Module:
        return Residual(outputs, output_scale)


@pytest.mark.full
def test_another_network_learns_policy_and_value() -> None:
    algorithm = ResidualPPO(num_envs=16, horizon=32, minibatches=2, learning_rate=5e-3, gamma=0.9, total_steps=30_000)
    result = fragmenta.train(algorithm, "ProbeObservation")
    encoded = algorithm.encode(make("ProbeObservation"), result.params, jnp.asarray([[1.0], [-1.0]]))
    value = algorithm.value(result.params, encoded)
    assert value.tolist() == pytest.approx([1.0, -1.0], abs=0.05)


def test_another_network_replaces_both_and_fits_the_action_space() -> None:
    algorithm, env = ResidualA2C(num_envs=2), make("Pendulum-v1")
    params = jax.eval_shape(lambda key: algorithm.init(env, key), jax.random.key(0)).learner.params
    shapes = {name: params[name]["params"]["last"]["kernel"].shape for name in ("policy", "value")}
    assert shapes == {"policy": (16, 1), "value": (16, 1)}
    params = jax.eval_shape(lambda key: algorithm.init(make("CartPole-v1"), key), jax.random.key(0)).learner.params
    assert params["policy"]["params"]["last"]["kernel"].shape == (16, 2)
