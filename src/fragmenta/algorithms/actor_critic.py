"""Shared by actor-critic algorithms: networks, acting, collecting trajectories, applying gradients."""

import dataclasses
import itertools
import math
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from fragmenta.algorithms.base import Algorithm
from fragmenta.algorithms.limits import COUNT, FRACTION, NOT_NEGATIVE, POSITIVE, Limit
from fragmenta.envs import Box, Dict, Discrete, Environment, MultiDiscrete, Space, Transition, World
from fragmenta.errors import ConfigError
from fragmenta.nn import MLP
from fragmenta.nn.encoder import Encoder, check_observations, has_images
from fragmenta.rl import Categorical, MultiCategorical, Normal, fold_each, keys_by_index
from fragmenta.rl.normalize import (
    LIMIT,
    Moments,
    Normalizer,
    add_observations,
    no_moments,
    running_returns,
    standardized,
)
from fragmenta.stage import stage


class Learner(NamedTuple):
    """Network parameters and optimizer state."""

    params: Any
    optimizer: Any


class State(NamedTuple):
    """The state that one iteration passes to the next."""

    world: World
    learner: Learner
    keys: jax.Array
    normalizer: Normalizer = Normalizer()
    memory: Any = ()
    """Memory of a recurrent policy, per environment; empty for others."""


def linear_decay(rate: float, updates: int) -> optax.Schedule:
    """A rate that decays linearly to zero over `updates` updates, capped because Optax counts them in 32 bits."""
    return optax.linear_schedule(rate, 0.0, min(updates, 2**31 - 1))


def clipped_adam(rate: optax.ScalarOrSchedule, max_grad_norm: float) -> optax.GradientTransformation:
    """Adam after clipping by the global norm, on one flat vector, which is faster than on many small leaves."""
    return optax.flatten(optax.chain(optax.clip_by_global_norm(max_grad_norm), optax.adam(rate, eps=1e-5)))


@dataclasses.dataclass(frozen=True)
class ActorCritic(Algorithm):
    """Separate policy and value networks; a subclass writes `iterate`, `learn` and `gradient`."""

    limits: ClassVar[dict[str, Limit]] = {
        "horizon": COUNT,
        "learning_rate": NOT_NEGATIVE,
        "gamma": FRACTION,
        "entropy_cost": NOT_NEGATIVE,
        "value_cost": NOT_NEGATIVE,
        "max_grad_norm": POSITIVE,
        "hidden": COUNT,
    }

    horizon: int = 128
    """Steps per environment and iteration."""
    learning_rate: float = 1e-3
    """Step size of the optimizer (Adam)."""
    anneal: bool = True
    """Decay the learning rate linearly to zero over the run."""
    gamma: float = 0.99
    """Discount of future rewards, per step."""
    entropy_cost: float = 0.01
    """Weight of the entropy bonus, which keeps the policy exploring."""
    value_cost: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Gradients with a larger norm are scaled down to this one."""
    hidden: tuple[int, ...] = (64, 64)
    """Hidden layer widths of both the policy and the value network."""
    compute: str = "float32"
    """Precision of the networks' arithmetic: float32 or bfloat16. Parameters and optimizer stay float32."""
    normalize_observations: bool = False
    """Standardise observations with running statistics, from all steps before the current iteration."""
    normalize_rewards: bool = False
    """Divide rewards by the running standard deviation of the discounted return; reported returns stay unscaled."""

    @property
    def steps_per_iteration(self) -> int:
        return self.num_envs * self.horizon

    def validate(self, env: Environment) -> None:
        super().validate(env)
        if self.compute not in ("float32", "bfloat16"):
            raise ConfigError(f"compute is '{self.compute}': choose float32 or bfloat16")
        if env.team_size is not None:
            raise ConfigError(
                f"{type(self).__name__} trains one agent, but {type(env).__name__} has {env.team_size}: use mappo"
            )
        if isinstance(env.action_space, Dict) or (
            isinstance(env.action_space, Box) and not env.action_space.dtype.startswith("float")
        ):
            problem = f"{type(self).__name__} does not support action space {env.action_space}"
            raise ConfigError(f"{problem}: it takes Discrete, MultiDiscrete, or Box of a float type")
        check_observations(env.observation_space)

    def init(self, env: Environment, key: jax.Array) -> State:
        world_key, train_key, policy_key, value_key = jax.random.split(key, 4)
        world = env.reset(keys_by_index(world_key, self.num_envs))
        params, features = self.init_encoder(env, key, world.observation)
        params["policy"] = self._policy_net(env).init(policy_key, features)
        params["value"] = self._value_net().init(value_key, features)
        if isinstance(env.action_space, Box):
            params["log_std"] = jnp.zeros(env.action_space.shape)
        keys = keys_by_index(train_key, self.num_envs)
        normalizer = Normalizer()
        if self.normalize_observations:
            normalizer = normalizer._replace(observation=no_moments(env.observation_space))
        if self.normalize_rewards:
            zero = jnp.zeros(())
            normalizer = normalizer._replace(reward=Moments(zero, zero, zero), running_return=jnp.zeros(self.num_envs))
        return State(world, Learner(params, self.optimizer().init(params)), keys, normalizer)

    def with_new_episodes(self, saved: State, fresh: State) -> State:
        normalizer = saved.normalizer._replace(running_return=fresh.normalizer.running_return)
        return super().with_new_episodes(saved, fresh)._replace(normalizer=normalizer, memory=fresh.memory)

    def init_encoder(self, env: Environment, key: jax.Array, observation: Any) -> tuple[dict[str, Any], jax.Array]:
        """The parameters of the observation encoder, and its features for an observation."""
        params: dict[str, Any] = {}
        if has_images(env.observation_space):
            params["encoder"] = self._encoder(env).init(jax.random.fold_in(key, 1), observation)
        return params, self._features(env, params, observation)

    def params(self, state: State) -> Any:
        """Everything acting needs: network parameters, and observation moments if observations are normalised."""
        moments = {"moments": state.normalizer.observation} if self.normalize_observations else {}
        return {**state.learner.params, **moments}

    def collect(
        self, env: Environment, params: Any, world: World, keys: jax.Array
    ) -> tuple[World, Transition, jax.Array]:
        """Act for `horizon` steps: the world afterwards, the trajectory, and the log-probabilities of its actions."""
        policy = self.acting(params)

        def tick(world: World, time: jax.Array) -> tuple[World, tuple[Transition, jax.Array]]:
            action, log_prob = self.act(env, policy, world.observation, fold_each(keys, time))
            world, transition = env.step(world, action)
            return world, (transition, log_prob)

        world, (trajectory, log_prob) = jax.lax.scan(tick, world, jnp.arange(self.horizon))
        return world, trajectory, log_prob

    def acting(self, params: Any) -> Any:
        """The parameters in the precision used for acting."""
        # Cast once, not at every step; remote actors get the smaller copy.
        return {
            name: part if name == "moments" else jax.tree.map(lambda x: x.astype(self.compute), part)
            for name, part in params.items()
        }

    @stage
    def act(self, env: Environment, params: Any, observation: Any, keys: jax.Array) -> tuple[Any, Any]:
        """Sample an action for every observation, with its log-probability."""
        policy = self.policy(env, params, self.encode(env, params, self.preprocess(params, observation)))
        action = policy.sample(keys)
        return action, policy.log_prob(action)

    def decide(
        self, env: Environment, params: Any, observation: Any, alive: Any, memory: Any, keys: jax.Array | None
    ) -> tuple[Any, Any]:
        params = self.acting(params)
        if keys is not None:
            return self.act(env, params, observation, keys)[0], memory
        return self.policy(env, params, self.encode(env, params, self.preprocess(params, observation))).mode(), memory

    def normalized(self, normalizer: Normalizer, trajectory: Transition) -> tuple[Normalizer, Transition]:
        """The updated running statistics, and the trajectory to learn from."""
        if not self.normalize_observations and not self.normalize_rewards:
            return normalizer, trajectory
        return self.normalize(normalizer, trajectory)

    @stage
    def normalize(self, normalizer: Normalizer, trajectory: Transition) -> tuple[Normalizer, Transition]:
        """Normalise a trajectory with the statistics used while acting, then update them with it."""
        if self.normalize_observations:
            moments = normalizer.observation
            normalizer = normalizer._replace(observation=add_observations(moments, trajectory.observation))
            observation = standardized(moments, trajectory.observation)
            next_observation = standardized(moments, trajectory.next_observation)
            trajectory = trajectory._replace(observation=observation, next_observation=next_observation)
        if normalizer.reward is not None and normalizer.running_return is not None:
            last, returns = running_returns(normalizer.running_return, trajectory, self.gamma)
            reward = jnp.clip(trajectory.reward / normalizer.reward.std(), -LIMIT, LIMIT)
            normalizer = normalizer._replace(reward=normalizer.reward.add(returns), running_return=last)
            trajectory = trajectory._replace(reward=reward)
        return normalizer, trajectory

    @stage
    def apply(self, learner: Learner, gradients: Any) -> Learner:
        """One optimizer step."""
        updates, optimizer = self.optimizer().update(gradients, learner.optimizer, learner.params)
        return Learner(optax.apply_updates(learner.params, updates), optimizer)

    @property
    def updates_per_iteration(self) -> int:
        """Optimizer steps of one iteration."""
        return 1

    def optimizer(self) -> optax.GradientTransformation:
        """Adam after gradient clipping, at a rate that decays over the run if `anneal`."""
        updates = -(-self.total_steps // self.steps_per_iteration) * self.updates_per_iteration
        rate = linear_decay(self.learning_rate, updates) if self.anneal else self.learning_rate
        return clipped_adam(rate, self.max_grad_norm)

    def preprocess(self, params: Any, observation: Any) -> Any:
        """Standardise an observation, if observations are normalised."""
        return standardized(params["moments"], observation) if self.normalize_observations else observation

    def encode(self, env: Environment, params: Any, observation: Any) -> jax.Array:
        """The network inputs for a batch of observations; plain vectors stay as they are."""
        return self._features(env, params, observation)

    def policy(self, env: Environment, params: Any, features: jax.Array) -> Categorical | MultiCategorical | Normal:
        """The distribution over actions for a batch of encoded observations."""
        outputs: Any = self._policy_net(env).apply(params["policy"], features)
        space = env.action_space
        if isinstance(space, Discrete):
            return Categorical(outputs)
        if isinstance(space, MultiDiscrete):
            starts = list(itertools.accumulate(space.choices[:-1]))
            return MultiCategorical(tuple(Categorical(part) for part in jnp.split(outputs, starts, axis=-1)))
        assert isinstance(space, Box)
        return Normal(outputs.reshape(*outputs.shape[:-1], *space.shape), params["log_std"])

    def value(self, params: Any, features: jax.Array) -> jax.Array:
        """The value of a batch of encoded observations."""
        outputs: Any = self._value_net().apply(params["value"], features)
        return outputs[..., 0]

    def network(self, outputs: int, output_scale: float) -> nn.Module:
        """The architecture of both the policy and the value network: from encoded observations to `outputs` numbers,
        at first of about the size `output_scale`. Override it for another one."""
        return MLP(self.hidden, outputs, output_scale, self.compute)

    def _features(self, env: Environment, params: Any, observation: Any) -> Any:
        return self._encoder(env).apply(params.get("encoder", {}), observation)

    def _encoder(self, env: Environment) -> Encoder:
        return Encoder(env.observation_space, self.compute)

    def _policy_net(self, env: Environment) -> nn.Module:
        return self.network(_outputs(env.action_space), 0.01)

    def _value_net(self) -> nn.Module:
        return self.network(1, 1.0)


def _outputs(space: Space) -> int:
    """The number of network outputs that parametrise a distribution over the space."""
    if isinstance(space, Discrete):
        return space.n
    if isinstance(space, MultiDiscrete):
        return sum(space.choices)
    assert isinstance(space, Box)
    return math.prod(space.shape)
