"""PPO with a memory of the episode, for partially observable environments."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fragmenta.algorithms.actor_critic import State
from fragmenta.algorithms.encoding import Encoded
from fragmenta.algorithms.ppo import PPO, Sample
from fragmenta.algorithms.remembering import RecurrentInput, Remembering, clear_ended
from fragmenta.envs import Environment, Transition, World
from fragmenta.rl import fold_each, split_each, steps_of_chunks
from fragmenta.stage import stage


class ActInfo(NamedTuple):
    """What acting records for learning."""

    log_prob: jax.Array
    memory: jax.Array
    """Before the step."""


@dataclasses.dataclass(frozen=True)
class RecurrentPPO(Remembering, PPO):
    """PPO whose networks take the memory of the episode as input; learns on each environment's steps in order.

    A pass cuts every environment's steps into as many chunks as there are minibatches; a chunk starts from the memory
    that acting recorded there.
    """

    minibatches: int = 4
    """Minibatches per pass, and chunks per environment: more of them mean shorter sequences to learn from."""

    def init(self, env: Environment, key: jax.Array) -> State:
        return super().init(env, key)._replace(memory=self.fresh_memory(self.num_envs))

    def iterate(self, env: Environment, state: State) -> tuple[State, dict[str, jax.Array]]:
        keys, act_keys, learn_keys = split_each(state.keys, 3)
        policy = self.acting(self.params(state))

        def tick(carry: tuple[World, jax.Array], time: jax.Array) -> tuple[Any, tuple[Transition, ActInfo]]:
            world, memory = carry
            inputs = RecurrentInput(world.observation, memory)
            action, (log_prob, next_memory) = self.act(env, policy, inputs, fold_each(act_keys, time))
            world, transition = self.stepped(env, world, action)
            next_memory = clear_ended(transition.terminated | transition.truncated, next_memory)
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
        memory, encoded = self.remember(env, params, inputs)
        policy = self.policy(env, params, encoded)
        action = policy.sample(keys)
        return action, (policy.log_prob(action), memory)

    def decide(
        self, env: Environment, params: Any, observation: Any, alive: Any, memory: Any, keys: jax.Array | None
    ) -> tuple[Any, Any]:
        params = self.acting(params)
        if keys is not None:
            action, (_, memory) = self.act(env, params, RecurrentInput(observation, memory), keys)
            return action, memory
        inputs = RecurrentInput(self.preprocess(params, observation), memory)
        memory, encoded = self.remember(env, params, inputs)
        return self.policy(env, params, encoded).mode(), memory

    def samples(self, env: Environment, params: Any, trajectory: Transition, acted: ActInfo) -> Sample:
        """Steps with their advantages; the value after a step uses the memory after it."""
        ended = trajectory.terminated | trajectory.truncated
        inputs = RecurrentInput(trajectory.observation, acted.memory, ended)
        next_memory, _ = self.remember(env, params, inputs)
        next_inputs = RecurrentInput(trajectory.next_observation, next_memory, ended)
        trajectory = trajectory._replace(observation=inputs, next_observation=next_inputs)
        return super().samples(env, params, trajectory, acted.log_prob)

    def minibatch_steps(self, keys: jax.Array) -> jax.Array:
        return steps_of_chunks(keys, self.horizon, self.minibatches)

    def minibatch_features(self, env: Environment, params: Any, batch: Sample) -> Encoded:
        """The features after every step of the chunks; each chunk starts from the memory before its first step."""
        return self.remember_all(env, params, batch.observation)


@dataclasses.dataclass(frozen=True)
class LSTMPPO(RecurrentPPO):
    """PPO with long short-term memory."""

    cell: str = "lstm"


@dataclasses.dataclass(frozen=True)
class TransformerPPO(RecurrentPPO):
    """PPO that attends to the latest steps of the episode."""

    cell: str = "transformer"
