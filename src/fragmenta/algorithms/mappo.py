"""PPO for teams: MAPPO (Yu et al., 2022), whose value function sees all agents' observations, and IPPO (de Witt et al.,
2020), whose value function sees those of its own agent."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from fragmenta.algorithms.actor_critic import ActorCritic
from fragmenta.algorithms.limits import Limit
from fragmenta.algorithms.neural import Learner, NeuralAlgorithm
from fragmenta.algorithms.ppo import PPO
from fragmenta.envs import Box, Discrete, Environment, Transition, World
from fragmenta.errors import ConfigError
from fragmenta.rl import (
    Categorical,
    ValueFit,
    explained_variance,
    fold_each,
    generalized_advantage,
    keys_by_index,
    split_each,
    steps_of_minibatches,
    take_steps,
    value_fit,
)
from fragmenta.rl.teams import for_each_agent, joint_observation, mask_absent, mean_present
from fragmenta.stage import stage


class State(NamedTuple):
    """The state that one iteration passes to the next."""

    world: World
    learner: Learner
    keys: jax.Array
    agent: jax.Array
    """The index of each agent, so that a replica that holds some agents samples for those only."""


class Sample(NamedTuple):
    """The parts of a step that the loss needs."""

    observation: jax.Array
    everything: Any
    """All agents' observations concatenated, for a centralised value function; empty for others."""
    action: jax.Array
    log_prob: jax.Array
    advantage: jax.Array
    target: jax.Array
    alive: jax.Array


@dataclasses.dataclass(frozen=True)
class MAPPO(NeuralAlgorithm):
    """PPO for a team with a centralised value function; agents that dropped out are masked."""

    allows_lag: ClassVar[bool] = True  # the ratio in the loss is to the policy that acted

    limits: ClassVar[dict[str, Limit]] = {**ActorCritic.limits, **PPO.limits}
    is_centralised: ClassVar[bool] = True
    """Whether the value function takes the observations of all agents."""

    num_envs: int = 64
    total_steps: int = 1_280_000
    shared: bool = True
    """Share networks among all agents; otherwise each has its own networks and optimizer, on the leaves' first axis."""
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
        """Also requires a team with vector observations and discrete actions."""
        super().validate(env)
        if env.team_size is None or not isinstance(env.action_space, Discrete):
            problem = f"{type(env).__name__} is not a team with discrete actions"
            raise ConfigError(f"{problem}: choose a team such as jaxmarl:simple_spread, or another algorithm")
        space = env.observation_space
        if not isinstance(space, Box) or len(space.shape) != 1:
            problem = f"an agent of {type(env).__name__} observes {space}, not a vector"
            raise ConfigError(f"{problem}: flatten it with a wrapper, for example supersuit:flatten_v0")
        if self.horizon % self.minibatches:
            problem = f"horizon {self.horizon} does not divide into {self.minibatches} minibatches"
            raise ConfigError(f"{problem}: choose a horizon that is a multiple of minibatches")

    def init(self, env: Environment, key: jax.Array) -> State:
        assert env.team_size is not None
        team_size = env.team_size
        world_key, train_key, params_key = jax.random.split(key, 3)
        world = env.reset(keys_by_index(world_key, self.num_envs))
        agent, size = jnp.arange(env.num_agents), world.observation.shape[-1]

        def networks(key: jax.Array) -> Learner:
            policy_key, value_key = jax.random.split(key)
            params = {"policy": self._policy_net(env).init(policy_key, jnp.zeros((1, size)))}
            inputs = size * (1 + team_size) if self.is_centralised else size
            params["value"] = self.head(1, 1.0).init(value_key, jnp.zeros((1, inputs)))
            return self.new_learner(params)

        agent_keys = jax.vmap(jax.random.fold_in, (None, 0))(params_key, agent)
        # Not vmap: batched QR decompositions, as of orthogonal weights, can wait forever for each other on few cores.
        learner = networks(params_key) if self.shared else jax.lax.map(networks, agent_keys)
        return State(world, learner, keys_by_index(train_key, self.num_envs), agent)

    def iterate(self, env: Environment, state: State) -> tuple[State, dict[str, jax.Array]]:
        keys, act_keys, learn_keys = split_each(state.keys, 3)
        policy = self.acting(state.learner.params["policy"])

        def tick(world: World, time: jax.Array) -> tuple[World, tuple[Transition, jax.Array]]:
            step_keys = fold_each(act_keys, time)
            action, log_prob = self.act(env, policy, world.observation, world.alive, step_keys, state.agent)
            world, transition = self.stepped(env, world, action)
            return world, (transition, log_prob)

        world, (trajectory, log_prob) = jax.lax.scan(tick, state.world, jnp.arange(self.horizon))
        learner, losses = self.learn(env, state.learner, trajectory, log_prob, learn_keys)
        return State(world, learner, keys, state.agent), losses

    @stage
    def act(
        self, env: Environment, policy: Any, observation: jax.Array, alive: jax.Array, keys: jax.Array, agent: Any
    ) -> tuple[jax.Array, jax.Array]:
        """Sample an action for every agent from its own observation, with its log-probability."""
        actions = self._policy(env, policy, mask_absent(alive, observation))
        agent_keys = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))(keys, agent)
        action = jax.vmap(Categorical.sample)(actions, agent_keys)
        return action, actions.log_prob(action)

    def decide(
        self, env: Environment, params: Any, observation: Any, alive: Any, memory: Any, keys: jax.Array | None
    ) -> tuple[Any, Any]:
        if keys is None:
            return self._policy(env, params["policy"], mask_absent(alive, observation)).mode(), memory
        return self.act(env, params["policy"], observation, alive, keys, jnp.arange(env.num_agents))[0], memory

    @stage
    def learn(
        self, env: Environment, learner: Learner, trajectory: Transition, log_prob: jax.Array, keys: jax.Array
    ) -> tuple[Learner, dict[str, jax.Array]]:
        """Update policy and value on one iteration's steps."""
        alive, next_alive = trajectory.alive, trajectory.next_alive
        observation = mask_absent(alive, trajectory.observation)
        everything = self._joint(observation)
        value = self._value(learner.params, observation, everything)
        next_observation = mask_absent(next_alive, trajectory.next_observation)
        next_value = self._value(learner.params, next_observation, self._joint(next_observation))
        # An agent that drops out gets no further reward: its episode has terminated.
        truncated = for_each_agent(trajectory.truncated, alive.shape)
        per_agent = trajectory._replace(terminated=~next_alive, truncated=truncated)
        advantage = generalized_advantage(per_agent, value, next_value, self.gamma, self.gae_lambda)
        samples = Sample(observation, everything, trajectory.action, log_prob, advantage, advantage + value, alive)

        def epoch(learner: Learner, index: jax.Array) -> tuple[Learner, Any]:
            steps = steps_of_minibatches(fold_each(keys, index), self.horizon, self.minibatches)
            return jax.lax.scan(minibatch, learner, steps)

        def minibatch(learner: Learner, steps: jax.Array) -> tuple[Learner, Any]:
            gradients, aux = self.gradient(env, learner.params, take_steps(samples, steps))
            return self.apply(learner, gradients), aux

        learner, aux = jax.lax.scan(epoch, learner, jnp.arange(self.epochs))
        losses, fit = jax.tree.map(jnp.mean, aux)
        return learner, {**losses, "explained_variance": explained_variance(fit)}

    @stage
    def gradient(self, env: Environment, params: Any, batch: Sample) -> tuple[Any, tuple[Any, ValueFit]]:
        """The gradient of the loss on one minibatch, the losses, and the value fit before the update."""
        mean, square = (mean_present(batch.alive, x) for x in (batch.advantage, batch.advantage**2))
        advantage = (batch.advantage - mean) / (jnp.sqrt(jnp.maximum(square - mean**2, 0.0)) + 1e-8)

        def loss(params: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
            policy = self._policy(env, params["policy"], batch.observation)
            log_ratio = policy.log_prob(batch.action) - batch.log_prob
            ratio = jnp.exp(log_ratio)
            clipped = jnp.clip(ratio, 1 - self.clip, 1 + self.clip)
            value = self._value(params, batch.observation, batch.everything)
            per_step = {
                "policy_loss": -jnp.minimum(ratio * advantage, clipped * advantage),
                "entropy": policy.entropy(),
            }
            per_step |= {"value_loss": 0.5 * (value - batch.target) ** 2, "kl": ratio - 1 - log_ratio}
            losses = {name: mean_present(batch.alive, x) for name, x in per_step.items()}
            total = losses["policy_loss"] + self.value_cost * losses["value_loss"]
            return total - self.entropy_cost * losses["entropy"], losses

        gradients, losses = jax.grad(loss, has_aux=True)(params)
        return gradients, (losses, value_fit(batch.target, batch.advantage, batch.alive))

    @stage
    def apply(self, learner: Learner, gradients: Any) -> Learner:
        """One optimizer step, or one per agent."""
        return (self.updated if self.shared else jax.vmap(self.updated))(learner, gradients)

    @property
    def updates_per_iteration(self) -> int:
        return self.epochs * self.minibatches

    def _policy(self, env: Environment, policy: Any, observation: jax.Array) -> Categorical:
        return Categorical(self._apply_net(self._policy_net(env), policy, observation))

    def _joint(self, observation: jax.Array) -> Any:
        return joint_observation(observation) if self.is_centralised else ()

    def _value(self, params: Any, observation: jax.Array, everything: Any) -> jax.Array:
        if self.is_centralised:
            rows = for_each_agent(jnp.moveaxis(everything, -1, 0), (everything.shape[-1], *observation.shape[:-1]))
            observation = jnp.concatenate([observation, jnp.moveaxis(rows, 0, -1)], axis=-1)
        return self._apply_net(self.head(1, 1.0), params["value"], observation)[..., 0]

    def _apply_net(self, net: nn.Module, params: Any, inputs: jax.Array) -> Any:
        """Apply one network to all agents, or each agent's own; agents are the last axis but one."""
        return net.apply(params, inputs) if self.shared else jax.vmap(net.apply, (0, -2), -2)(params, inputs)

    def _policy_net(self, env: Environment) -> nn.Module:
        assert isinstance(env.action_space, Discrete)
        return self.head(env.action_space.n, 0.01)


@dataclasses.dataclass(frozen=True)
class IPPO(MAPPO):
    """PPO for a team in which every agent learns from its own observations alone."""

    is_centralised: ClassVar[bool] = False
