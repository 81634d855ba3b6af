"""What algorithms with a policy and a value network share: networks, acting, collecting, applying gradients."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fragmenta.algorithms.base import Algorithm
from fragmenta.envs import Discrete, Environment, Transition, World
from fragmenta.errors import ConfigError
from fragmenta.nn import MLP
from fragmenta.rl import Categorical, Normal, fold_each, keys_by_index
from fragmenta.stage import stage


class Learner(NamedTuple):
    """What learning changes."""

    params: Any
    optimizer: Any


class State(NamedTuple):
    """What one iteration hands to the next."""

    world: World
    learner: Learner
    keys: jax.Array


def clipped_adam(rate: optax.ScalarOrSchedule, max_grad_norm: float) -> optax.GradientTransformation:
    """Adam after clipping by the global norm, on one flat vector, which is quicker than on many small leaves."""
    return optax.flatten(optax.chain(optax.clip_by_global_norm(max_grad_norm), optax.adam(rate, eps=1e-5)))


@dataclasses.dataclass(frozen=True)
class ActorCritic(Algorithm):
    """A policy and a value network, each of its own; a subclass writes `iterate`, `learn` and `gradient`."""

    horizon: int = 128
    """Steps per environment and iteration."""
    learning_rate: float = 1e-3
    gamma: float = 0.99
    entropy_cost: float = 0.01
    value_cost: float = 0.5
    max_grad_norm: float = 0.5
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers, of the policy and of the value network alike."""
    compute: str = "float32"
    """Precision of the networks' arithmetic: float32 or bfloat16. Parameters and optimizer stay float32."""

    @property
    def steps_per_iteration(self) -> int:
        return self.num_envs * self.horizon

    def validate(self, env: Environment) -> None:
        super().validate(env)
        if self.horizon < 1:
            raise ConfigError(f"horizon is {self.horizon}: it must be at least 1")
        if self.compute not in ("float32", "bfloat16"):
            raise ConfigError(f"compute is '{self.compute}': choose float32 or bfloat16")
        if env.num_agents > 1:
            raise ConfigError(
                f"{type(self).__name__} trains one agent, but {type(env).__name__} has {env.num_agents}: use mappo"
            )

    def init(self, env: Environment, key: jax.Array) -> State:
        world_key, train_key, policy_key, value_key = jax.random.split(key, 4)
        world = env.reset(keys_by_index(world_key, self.num_envs))
        params: dict[str, Any] = {"policy": self._policy_net(env).init(policy_key, world.observation)}
        params["value"] = self._value_net().init(value_key, world.observation)
        if not isinstance(env.action_space, Discrete):
            params["log_std"] = jnp.zeros(env.action_space.shape)
        keys = keys_by_index(train_key, self.num_envs)
        return State(world, Learner(params, self.optimizer().init(params)), keys)

    def collect(
        self, env: Environment, params: Any, world: World, keys: jax.Array
    ) -> tuple[World, Transition, jax.Array]:
        """Act for `horizon` steps: the world after them, the trajectory, and the log-probabilities of its actions."""
        # Cast once, not at every step; actors elsewhere get the smaller copy.
        policy = jax.tree.map(lambda x: x.astype(self.compute), params)

        def tick(world: World, time: jax.Array) -> tuple[World, tuple[Transition, jax.Array]]:
            action, log_prob = self.act(env, policy, world.observation, fold_each(keys, time))
            world, transition = env.step(world, action)
            return world, (transition, log_prob)

        world, (trajectory, log_prob) = jax.lax.scan(tick, world.clear_finished(), jnp.arange(self.horizon))
        return world, trajectory, log_prob

    @stage
    def act(self, env: Environment, params: Any, observation: jax.Array, keys: jax.Array) -> tuple[Any, Any]:
        """Draw an action for every observation, with its log-probability."""
        policy = self.policy(env, params, observation)
        action = policy.sample(keys)
        return action, policy.log_prob(action)

    @stage
    def apply(self, learner: Learner, gradients: Any) -> Learner:
        """One step of the optimizer."""
        updates, optimizer = self.optimizer().update(gradients, learner.optimizer, learner.params)
        return Learner(optax.apply_updates(learner.params, updates), optimizer)

    def optimizer(self) -> optax.GradientTransformation:
        """Adam at a constant rate, after clipping."""
        return clipped_adam(self.learning_rate, self.max_grad_norm)

    def policy(self, env: Environment, params: Any, observation: jax.Array) -> Categorical | Normal:
        """The distribution over actions for a batch of observations."""
        outputs: Any = self._policy_net(env).apply(params["policy"], observation)
        return Categorical(outputs) if isinstance(env.action_space, Discrete) else Normal(outputs, params["log_std"])

    def value(self, params: Any, observation: jax.Array) -> jax.Array:
        """The value of a batch of observations."""
        outputs: Any = self._value_net().apply(params["value"], observation)
        return outputs[..., 0]

    def _policy_net(self, env: Environment) -> MLP:
        space = env.action_space
        return MLP(self.hidden, space.n if isinstance(space, Discrete) else space.shape[0], 0.01, self.compute)

    def _value_net(self) -> MLP:
        return MLP(self.hidden, 1, 1.0, self.compute)
