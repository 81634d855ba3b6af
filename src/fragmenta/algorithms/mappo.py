"""PPO for teams: MAPPO (Yu et al., 2022), whose value function sees all agents' observations, and IPPO (de Witt et al.,
2020), whose value function sees those of its own agent."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fragmenta.algorithms.actor_critic import ActorCritic, State
from fragmenta.algorithms.limits import Limit
from fragmenta.algorithms.neural import Learner
from fragmenta.algorithms.ppo import PPO
from fragmenta.algorithms.team import of_encoders
from fragmenta.algorithms.team_actors import ActInfo, TeamActors
from fragmenta.envs import Environment, Transition, World
from fragmenta.errors import ConfigError
from fragmenta.rl import (
    fold_each,
    generalized_advantage,
    keys_by_index,
    split_each,
    steps_of_chunks,
    steps_of_minibatches,
    take_steps,
)
from fragmenta.rl.returns import ValueFit, explained_variance, value_fit
from fragmenta.rl.teams import TeamView, for_each_agent, joint, mean_present
from fragmenta.stage import stage


class Sample(NamedTuple):
    """The parts of a step that the loss needs."""

    view: TeamView
    memory: Any
    ended: jax.Array
    """Whether the episode ended with the step, for each agent."""
    everything: Any
    """What all agents see, for a centralised value function; None if networks that are trained make it."""
    action: jax.Array
    log_prob: jax.Array
    advantage: jax.Array
    target: jax.Array


@dataclasses.dataclass(frozen=True)
class MAPPO(TeamActors):
    """PPO for a team with a centralised value function; agents that dropped out are masked.

    With a memory it learns on each environment's steps in order: a pass cuts them into as many chunks as there are
    minibatches, each from the memories that acting recorded there.
    """

    allows_lag: ClassVar[bool] = True  # the ratio in the loss is to the policy that acted

    limits: ClassVar[dict[str, Limit]] = {**ActorCritic.limits, **PPO.limits}

    num_envs: int = 64
    total_steps: int = 1_280_000
    horizon: int = 25
    epochs: int = 5
    """Passes over each iteration's steps."""
    minibatches: int = 5
    """Minibatches per pass; each holds a slice of every environment's steps."""
    learning_rate: float = 3e-3
    gamma: float = 0.9
    gae_lambda: float = 0.6
    """How far advantages look ahead. Low, because long returns are noisy with the other agents' actions."""
    clip: float = 0.3
    """How far an update may move the probability of an action: 0.3 is by a factor of 0.7 to 1.3."""
    entropy_cost: float = 0.0
    """Weight of the entropy bonus, which keeps the policy exploring."""
    value_cost: float = 0.5
    """Weight of the value loss."""
    hidden: tuple[int, ...] = (128, 128)

    def validate(self, env: Environment) -> None:
        super().validate(env)
        self.check_agents(env)
        if self.horizon % self.minibatches:
            problem = f"horizon {self.horizon} does not divide into {self.minibatches} minibatches"
            raise ConfigError(f"{problem}: choose a horizon that is a multiple of minibatches")

    def init(self, env: Environment, key: jax.Array) -> State:
        world_key, train_key, params_key = jax.random.split(key, 3)
        world = env.reset(keys_by_index(world_key, self.num_envs))

        def networks(key: jax.Array) -> Learner:
            return self.new_learner(self.init_networks(env, key, world.observation))

        learner, keys = self.init_each(env, networks, params_key), keys_by_index(train_key, self.num_envs)
        return State(world, learner, keys, memory=self.fresh_memory(self.num_envs, env.num_agents))

    def with_new_episodes(self, saved: State, fresh: State) -> State:
        return super().with_new_episodes(saved, fresh)._replace(memory=fresh.memory)

    def iterate(self, env: Environment, state: State) -> tuple[State, dict[str, jax.Array]]:
        keys, act_keys, learn_keys = split_each(state.keys, 3)
        actor = self.acting({name: part for name, part in state.learner.params.items() if name != "value"})

        def tick(carry: tuple[World, Any], time: jax.Array) -> tuple[tuple[World, Any], tuple[Transition, ActInfo]]:
            world, memory = carry
            view, key = TeamView(world.observation, world.alive), fold_each(act_keys, time)
            action, (log_prob, next_memory) = self.act(env, actor, view, memory, key)
            world, transition = self.stepped(env, world, action)
            next_memory = self.kept(_ended(transition), next_memory)
            return (world, next_memory), (transition, ActInfo(log_prob, memory))

        start = state.world, state.memory
        (world, memory), (trajectory, acted) = jax.lax.scan(tick, start, jnp.arange(self.horizon))
        learner, losses = self.learn(env, state.learner, trajectory, acted, learn_keys)
        return State(world, learner, keys, memory=memory), losses

    @stage
    def learn(
        self, env: Environment, learner: Learner, trajectory: Transition, acted: ActInfo, keys: jax.Array
    ) -> tuple[Learner, dict[str, jax.Array]]:
        """Update policy and value on one iteration's steps."""
        samples = self.samples(env, learner.params, trajectory, acted)

        def epoch(learner: Learner, index: jax.Array) -> tuple[Learner, Any]:
            cut = steps_of_chunks if self.remembers else steps_of_minibatches
            return jax.lax.scan(minibatch, learner, cut(fold_each(keys, index), self.horizon, self.minibatches))

        def minibatch(learner: Learner, steps: jax.Array) -> tuple[Learner, Any]:
            gradients, aux = self.gradient(env, learner.params, take_steps(samples, steps))
            return self.apply(learner, gradients), aux

        learner, aux = jax.lax.scan(epoch, learner, jnp.arange(self.epochs))
        losses, fit = jax.tree.map(jnp.mean, aux)
        return learner, {**losses, "explained_variance": explained_variance(fit)}

    def samples(self, env: Environment, params: Any, trajectory: Transition, acted: ActInfo) -> Sample:
        """Steps with their advantages; the value after a step uses the memory after it."""
        view = TeamView(trajectory.observation, trajectory.alive)
        next_view = TeamView(trajectory.next_observation, trajectory.next_alive)
        next_memory, encoded = self.remember_each(env, params, view, acted.memory)
        _, next_encoded = self.remember_each(env, params, next_view, next_memory)
        # Joined once, not in every minibatch, if it stays the same.
        is_fixed = self.is_centralised and not of_encoders(params)
        everything = joint(encoded.critic) if is_fixed else None
        value = self.value(env, params, encoded, everything)
        # An agent that drops out gets no further reward: its episode has terminated.
        truncated = for_each_agent(trajectory.truncated, view.alive.shape)
        per_agent = trajectory._replace(terminated=~trajectory.next_alive, truncated=truncated)
        next_value = self.value(env, params, next_encoded)
        advantage = generalized_advantage(per_agent, value, next_value, self.gamma, self.gae_lambda)
        ended, target = _ended(trajectory), advantage + value
        return Sample(view, acted.memory, ended, everything, trajectory.action, acted.log_prob, advantage, target)

    @stage
    def gradient(self, env: Environment, params: Any, batch: Sample) -> tuple[Any, tuple[Any, ValueFit]]:
        """The gradient of the loss on one minibatch, the losses, and the value fit before the update."""
        alive = batch.view.alive
        mean, square = (mean_present(alive, x) for x in (batch.advantage, batch.advantage**2))
        advantage = (batch.advantage - mean) / (jnp.sqrt(jnp.maximum(square - mean**2, 0.0)) + 1e-8)

        def loss(params: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
            encoded = self.remember_sequence(env, params, batch.view, batch.memory, batch.ended)
            policy = self.policy(env, params, encoded)
            log_ratio = policy.log_prob(batch.action) - batch.log_prob
            ratio = jnp.exp(log_ratio)
            clipped = jnp.clip(ratio, 1 - self.clip, 1 + self.clip)
            value = self.value(env, params, encoded, batch.everything)
            policy_loss = -jnp.minimum(ratio * advantage, clipped * advantage)
            per_step = {"policy_loss": policy_loss, "entropy": policy.entropy()}
            per_step |= {"value_loss": 0.5 * (value - batch.target) ** 2, "kl": ratio - 1 - log_ratio}
            losses = {name: mean_present(alive, x) for name, x in per_step.items()}
            total = losses["policy_loss"] + self.value_cost * losses["value_loss"]
            return total - self.entropy_cost * losses["entropy"], losses

        gradients, losses = jax.grad(loss, has_aux=True)(params)
        return gradients, (losses, value_fit(batch.target, batch.advantage, alive))

    @stage
    def apply(self, learner: Learner, gradients: Any) -> Learner:
        """One optimizer step, or one per agent."""
        return self.over_agents(self.updated)(learner, gradients)

    @property
    def updates_per_iteration(self) -> int:
        return self.epochs * self.minibatches


@dataclasses.dataclass(frozen=True)
class IPPO(MAPPO):
    """PPO for a team in which every agent learns from its own observations alone."""

    is_centralised: ClassVar[bool] = False


def _ended(transition: Transition) -> jax.Array:
    """Whether the episode of every agent ended with a step."""
    return for_each_agent(transition.terminated | transition.truncated, transition.alive.shape)
