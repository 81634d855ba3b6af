"""Shared by actor-critic algorithms: networks, acting, collecting trajectories, applying gradients."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from fragmenta.algorithms.encoding import Encoded
from fragmenta.algorithms.limits import NOT_NEGATIVE, Limit
from fragmenta.algorithms.neural import Learner, NeuralAlgorithm
from fragmenta.envs import Box, Dict, Environment, Transition, World
from fragmenta.errors import ConfigError
from fragmenta.rl import Categorical, MultiCategorical, Normal, fold_each, keys_by_index
from fragmenta.rl.distributions import integers_of, outputs_for
from fragmenta.rl.masks import masked_logits
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


class State(NamedTuple):
    """The state that one iteration passes to the next."""

    world: World
    learner: Learner
    keys: jax.Array
    normalizer: Normalizer = Normalizer()
    memory: Any = ()
    """Memory of a recurrent policy, per environment; empty for others."""


@dataclasses.dataclass(frozen=True)
class ActorCritic(NeuralAlgorithm):
    """Separate policy and value networks; a subclass writes `iterate`, `learn` and `gradient`."""

    limits: ClassVar[dict[str, Limit]] = {
        "entropy_cost": NOT_NEGATIVE,
        "value_cost": NOT_NEGATIVE,
    }

    entropy_cost: float = 0.01
    """Weight of the entropy bonus, which keeps the policy exploring."""
    value_cost: float = 0.5
    """Weight of the value loss."""
    normalize_observations: bool = False
    """Standardise observations with running statistics, from all steps before the current iteration."""
    normalize_rewards: bool = False
    """Divide rewards by the running standard deviation of the discounted return; reported returns stay unscaled."""
    critic_only: tuple[str, ...] = ()
    """Parts of the observations that only the value function sees, such as the simulator's state."""

    @property
    def critic_parts(self) -> tuple[str, ...]:
        return self.critic_only

    def validate(self, env: Environment) -> None:
        super().validate(env)
        self.check_agents(env)
        if isinstance(env.action_space, Dict) or (
            isinstance(env.action_space, Box) and not env.action_space.dtype.startswith("float")
        ):
            problem = f"{type(self).__name__} does not support action space {env.action_space}"
            raise ConfigError(f"{problem}: it takes Discrete, MultiDiscrete, or Box of a float type")

    def init(self, env: Environment, key: jax.Array) -> State:
        world_key, train_key, policy_key, value_key = jax.random.split(key, 4)
        world = env.reset(keys_by_index(world_key, self.num_envs))
        params, encoded = self.init_encoder(env, key, world.observation)
        params["policy"] = self._policy_net(env).init(policy_key, encoded.actor)
        params["value"] = self._value_net().init(value_key, encoded.critic)
        if isinstance(env.action_space, Box):
            params["log_std"] = jnp.zeros(env.action_space.shape)
        keys = keys_by_index(train_key, self.num_envs)
        normalizer = Normalizer()
        if self.normalize_observations:
            normalizer = normalizer._replace(observation=no_moments(env.observation_space))
        if self.normalize_rewards:
            zero = jnp.zeros(())
            normalizer = normalizer._replace(reward=Moments(zero, zero, zero), running_return=jnp.zeros(self.num_envs))
        return State(world, self.new_learner(params), keys, normalizer)

    def with_new_episodes(self, saved: State, fresh: State) -> State:
        normalizer = saved.normalizer._replace(running_return=fresh.normalizer.running_return)
        return super().with_new_episodes(saved, fresh)._replace(normalizer=normalizer, memory=fresh.memory)

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
            world, transition = self.stepped(env, world, action)
            return world, (transition, log_prob)

        world, (trajectory, log_prob) = jax.lax.scan(tick, world, jnp.arange(self.horizon))
        return world, trajectory, log_prob

    def acting(self, params: Any) -> Any:
        """The parameters in the precision used for acting."""
        return {
            name: part if name == "moments" else super(ActorCritic, self).acting(part) for name, part in params.items()
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
        return self.updated(learner, gradients)

    def preprocess(self, params: Any, observation: Any) -> Any:
        """Standardise an observation, if observations are normalised."""
        return standardized(params["moments"], observation) if self.normalize_observations else observation

    def policy(self, env: Environment, params: Any, encoded: Encoded) -> Categorical | MultiCategorical | Normal:
        """The distribution over actions for a batch of encoded observations; illegal actions are never drawn."""
        outputs: Any = self._policy_net(env).apply(params["policy"], encoded.actor)
        outputs = masked_logits(outputs, encoded.legal)
        space = env.action_space
        if isinstance(space, Box):
            return Normal(outputs.reshape(*outputs.shape[:-1], *space.shape), params["log_std"])
        return integers_of(space, outputs)

    def value(self, params: Any, encoded: Encoded) -> jax.Array:
        """The value of a batch of encoded observations."""
        outputs: Any = self._value_net().apply(params["value"], encoded.critic)
        return outputs[..., 0]

    def _policy_net(self, env: Environment) -> nn.Module:
        return self.head(outputs_for(env.action_space), 0.01)

    def _value_net(self) -> nn.Module:
        return self.head(1, 1.0)
