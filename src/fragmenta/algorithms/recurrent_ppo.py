"""PPO with a recurrent memory (GRU), for partially observable environments."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fragmenta.algorithms.actor_critic import State
from fragmenta.algorithms.limits import COUNT, Limit
from fragmenta.algorithms.ppo import PPO, Sample
from fragmenta.envs import Environment, Transition, World
from fragmenta.nn import Recurrent
from fragmenta.rl import fold_each, split_each, steps_of_chunks
from fragmenta.stage import stage


class RecurrentInput(NamedTuple):
    """An observation, and the memory of those before it in the episode."""

    observation: Any
    memory: jax.Array
    ended: Any = ()
    """In training sequences: whether the episode ended with this step, so that the next starts with an empty memory."""


class ActInfo(NamedTuple):
    """What acting records for learning."""

    log_prob: jax.Array
    memory: jax.Array
    """Before the step."""


@dataclasses.dataclass(frozen=True)
class RecurrentPPO(PPO):
    """PPO whose networks take the memory of the episode as input; learns on each environment's steps in order.

    A pass cuts every environment's steps into as many chunks as there are minibatches; a chunk starts from the memory
    that acting recorded there.
    """

    limits: ClassVar[dict[str, Limit]] = {"memory": COUNT}

    minibatches: int = 4
    """Minibatches per pass, and chunks per environment: more of them mean shorter sequences to learn from."""
    memory: int = 64
    """Units of the recurrent memory."""

    def init(self, env: Environment, key: jax.Array) -> State:
        return super().init(env, key)._replace(memory=self.fresh_memory(self.num_envs))

    def iterate(self, env: Environment, state: State) -> tuple[State, dict[str, jax.Array]]:
        keys, act_keys, learn_keys = split_each(state.keys, 3)
        policy = self.acting(self.params(state))

        def tick(carry: tuple[World, jax.Array], time: jax.Array) -> tuple[Any, tuple[Transition, ActInfo]]:
            world, memory = carry
            inputs = RecurrentInput(world.observation, memory)
            action, (log_prob, next_memory) = self.act(env, policy, inputs, fold_each(act_keys, time))
            world, transition = env.step(world, action)
            next_memory = _clear_ended(transition.terminated | transition.truncated, next_memory)
            return (world, next_memory), (transition, ActInfo(log_prob, memory))

        start = state.world, state.memory
        (world, memory), (trajectory, acted) = jax.lax.scan(tick, start, jnp.arange(self.horizon))
        normalizer, trajectory = self.normalized(state.normalizer, trajectory)
        learner, losses = self.learn(env, state.learner, trajectory, acted, learn_keys)
        return State(world, learner, keys, normalizer, memory), losses

    @stage
    def act(self, env: Environment, params: Any, observation: RecurrentInput, keys: jax.Array) -> tuple[Any, Any]:
        """Sample an action for every observation, with its log-probability and the next memory."""
        inputs = observation._replace(observation=self.preprocess(params, observation.observation))
        memory = self.encode(env, params, inputs)
        policy = self.policy(env, params, memory)
        action = policy.sample(keys)
        return action, (policy.log_prob(action), memory)

    def decide(
        self, env: Environment, params: Any, observation: Any, alive: Any, memory: Any, keys: jax.Array | None
    ) -> tuple[Any, Any]:
        params = self.acting(params)
        if keys is not None:
            action, (_, memory) = self.act(env, params, RecurrentInput(observation, memory), keys)
            return action, memory
        memory = self.encode(env, params, RecurrentInput(self.preprocess(params, observation), memory))
        return self.policy(env, params, memory).mode(), memory

    def fresh_memory(self, count: int) -> jax.Array:
        return jnp.zeros((count, self.memory))

    def samples(self, env: Environment, params: Any, trajectory: Transition, acted: ActInfo) -> Sample:
        """Steps with their advantages; the value after a step uses the memory after it."""
        ended = trajectory.terminated | trajectory.truncated
        inputs = RecurrentInput(trajectory.observation, acted.memory, ended)
        next_inputs = RecurrentInput(trajectory.next_observation, self.encode(env, params, inputs), ended)
        trajectory = trajectory._replace(observation=inputs, next_observation=next_inputs)
        return super().samples(env, params, trajectory, acted.log_prob)

    def minibatch_steps(self, keys: jax.Array) -> jax.Array:
        return steps_of_chunks(keys, self.horizon, self.minibatches)

    def minibatch_features(self, env: Environment, params: Any, batch: Sample) -> jax.Array:
        """The memory after every step of the chunks; each chunk starts from the memory before its first step."""
        sequence: RecurrentInput = batch.observation
        inputs = self._inputs(env, params, sequence.observation)

        def step(memory: jax.Array, x: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            inputs, ended = x
            memory = self._remember(params, memory, inputs)
            return _clear_ended(ended, memory), memory

        return jax.lax.scan(step, sequence.memory[0], (inputs, sequence.ended))[1]

    def encode(self, env: Environment, params: Any, observation: RecurrentInput) -> jax.Array:
        """The memory after an observation, which is the only input of the networks."""
        return self._remember(params, observation.memory, self._inputs(env, params, observation.observation))

    def init_encoder(self, env: Environment, key: jax.Array, observation: Any) -> tuple[dict[str, Any], jax.Array]:
        params, features = super().init_encoder(env, key, observation)
        memory = jnp.zeros((*features.shape[:-1], self.memory))
        params["memory"] = self._recurrent().init(jax.random.fold_in(key, 2), memory, features)
        return params, memory

    def _recurrent(self) -> Recurrent:
        return Recurrent(self.memory, self.compute)

    def _inputs(self, env: Environment, params: Any, observation: Any) -> Any:
        """The part of the GRU update that does not depend on the memory, for many steps at once."""
        features = self.features(env, params, observation)
        return self._recurrent().apply(params["memory"], features, method=Recurrent.inputs)

    def _remember(self, params: Any, memory: jax.Array, inputs: jax.Array) -> Any:
        return self._recurrent().apply(params["memory"], memory, inputs, method=Recurrent.step)


def _clear_ended(ended: jax.Array, memory: jax.Array) -> jax.Array:
    """Zero the memory where an episode ended."""
    return jnp.where(ended[:, None], 0.0, memory)
