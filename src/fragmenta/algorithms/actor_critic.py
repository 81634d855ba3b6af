"""Shared by actor-critic algorithms: networks, acting, collecting trajectories, applying gradients."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from fragmenta.algorithms.action_spaces import distribution_over, outputs_for
from fragmenta.algorithms.encoding import Encoded
from fragmenta.algorithms.limits import NOT_NEGATIVE, Limit
from fragmenta.algorithms.neural import Learner
from fragmenta.algorithms.normalizing import Normalizing
from fragmenta.envs import Box, Dict, Environment, Transition, World
from fragmenta.errors import ConfigError
from fragmenta.rl import Categorical, MultiCategorical, Normal, fold_each, keys_by_index, next_values
from fragmenta.rl.masks import masked_logits
from fragmenta.rl.normalize import Normalizer
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
class ActorCritic(Normalizing):
    """Separate policy and value networks; a subclass writes `iterate`, `learn` and `gradient`."""

    limits: ClassVar[dict[str, Limit]] = {"entropy_cost": NOT_NEGATIVE, "value_cost": NOT_NEGATIVE}

    entropy_cost: float = 0.01
    """Weight of the entropy bonus, which keeps the policy exploring."""
    value_cost: float = 0.5
    """Weight of the value loss."""
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
        learner, memory = self.new_learner(params), self.fresh_memory(self.num_envs)
        return State(world, learner, keys, self.new_normalizer(env), memory)

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

    def experience(self, env: Environment, state: State, keys: jax.Array) -> tuple[State, Transition, jax.Array]:
        """What `collect` does, with a memory if there is one: the state afterwards, the normalised trajectory with the
        memory before its steps, and the log-probabilities of its actions."""
        if not self.remembers:
            world, trajectory, log_prob = self.collect(env, self.params(state), state.world, keys)
            normalizer, trajectory = self.normalized(state.normalizer, trajectory)
            return state._replace(world=world, normalizer=normalizer), trajectory, log_prob
        policy = self.acting(self.params(state))

        def tick(carry: tuple[World, Any], time: jax.Array) -> tuple[tuple[World, Any], tuple[Transition, Any, Any]]:
            world, memory = carry
            inputs = self.with_memory(world.observation, memory)
            action, (log_prob, after) = self.act(env, policy, inputs, fold_each(keys, time))
            world, transition = self.stepped(env, world, action)
            after = self.kept(transition.terminated | transition.truncated, after)
            return (world, after), (transition, log_prob, memory if self.in_chunks else ())

        start = state.world, state.memory
        (world, memory), (trajectory, log_prob, before) = jax.lax.scan(tick, start, jnp.arange(self.horizon))
        normalizer, trajectory = self.normalized(state.normalizer, trajectory)
        # Whole trajectories need the memory before their first step alone.
        before = before if self.in_chunks else state.memory[None]
        inputs = self.with_memory(trajectory.observation, before, trajectory.terminated | trajectory.truncated)
        state = state._replace(world=world, memory=memory, normalizer=normalizer)
        return state, trajectory._replace(observation=inputs), log_prob

    def acting(self, params: Any) -> Any:
        """The parameters in the precision used for acting."""
        return {
            name: part if name == "moments" else super(ActorCritic, self).acting(part) for name, part in params.items()
        }

    @stage
    def act(self, env: Environment, params: Any, observation: Any, keys: jax.Array) -> tuple[Any, Any]:
        """Sample an action for every observation, with its log-probability, and the next memory if there is one."""
        memory, policy = self._policy_after(env, params, observation)
        action = policy.sample(keys)
        log_prob = policy.log_prob(action)
        return action, (log_prob, memory) if self.remembers else log_prob

    def decide(
        self, env: Environment, params: Any, observation: Any, alive: Any, memory: Any, keys: jax.Array | None
    ) -> tuple[Any, Any]:
        params, inputs = self.acting(params), self.with_memory(observation, memory)
        if keys is not None:
            action, acted = self.act(env, params, inputs, keys)
            return action, acted[1] if self.remembers else memory
        memory, policy = self._policy_after(env, params, inputs)
        return policy.mode(), memory

    def _policy_after(self, env: Environment, params: Any, inputs: Any) -> tuple[Any, Any]:
        """The memory after observations, and the distribution over actions."""
        memory, encoded = self.remember(env, params, self.preprocess(params, inputs))
        return memory, self.policy(env, params, encoded)

    def values_along(self, env: Environment, params: Any, trajectory: Transition) -> tuple[jax.Array, jax.Array]:
        """The value before every step of a trajectory, and after it unless it terminated the episode."""

        def value_of(observation: Any) -> jax.Array:
            return self.value(params, self.encode(env, params, observation))

        encoded, trajectory = self.with_next_memory(env, params, trajectory)
        value = self.value(params, encoded)
        return value, next_values(value_of, value, trajectory, env.shortest_cut)

    @stage
    def apply(self, learner: Learner, gradients: Any) -> Learner:
        """One optimizer step."""
        return self.updated(learner, gradients)

    def policy(self, env: Environment, params: Any, encoded: Encoded) -> Categorical | MultiCategorical | Normal:
        """The distribution over actions for a batch of encoded observations; illegal actions are never drawn."""
        outputs: Any = self._policy_net(env).apply(params["policy"], encoded.actor)
        return distribution_over(env.action_space, masked_logits(outputs, encoded.legal), params.get("log_std"))

    def value(self, params: Any, encoded: Encoded) -> jax.Array:
        """The value of a batch of encoded observations."""
        outputs: Any = self._value_net().apply(params["value"], encoded.critic)
        return outputs[..., 0]

    def _policy_net(self, env: Environment) -> nn.Module:
        return self.head(outputs_for(env.action_space), 0.01)

    def _value_net(self) -> nn.Module:
        return self.head(1, 1.0)
