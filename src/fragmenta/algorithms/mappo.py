"""Multi-agent proximal policy optimization (Yu et al., 2022): decentralised actors, a centralised value function."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fragmenta.algorithms.actor_critic import ActorCritic
from fragmenta.algorithms.base import Algorithm
from fragmenta.algorithms.limits import Limit
from fragmenta.algorithms.neural import Learner, NeuralAlgorithm, clipped_adam, linear_decay
from fragmenta.algorithms.ppo import PPO
from fragmenta.envs import Box, Discrete, Environment, Transition, World
from fragmenta.errors import ConfigError
from fragmenta.nn import MLP
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
    everything: jax.Array
    """All agents' observations concatenated, for the value function."""
    action: jax.Array
    log_prob: jax.Array
    advantage: jax.Array
    target: jax.Array
    alive: jax.Array


@dataclasses.dataclass(frozen=True)
class MAPPO(Algorithm):
    """PPO for a team with a centralised value function; agents that dropped out are masked."""

    allows_lag: ClassVar[bool] = True  # the ratio in the loss is to the policy that acted

    limits: ClassVar[dict[str, Limit]] = {**NeuralAlgorithm.limits, **ActorCritic.limits, **PPO.limits}

    num_envs: int = 64
    total_steps: int = 1_280_000
    shared: bool = True
    """Share networks among all agents; otherwise each has its own networks and optimizer, on the leaves' first axis."""
    horizon: int = 25
    """Steps per environment and iteration."""
    epochs: int = 5
    """Passes over each iteration's steps."""
    minibatches: int = 5
    """Minibatches per pass; each holds a slice of every environment's steps."""
    learning_rate: float = 3e-3
    """Step size of the optimizer (Adam)."""
    anneal: bool = True
    """Decay the learning rate linearly to zero over the run."""
    gamma: float = 0.9
    """Discount of future rewards, per step."""
    gae_lambda: float = 0.6
    """How far advantages look ahead. Low, because long returns are noisy with the other agents' actions."""
    clip: float = 0.3
    """How far an update may move the probability of an action: 0.3 is by a factor of 0.7 to 1.3."""
    entropy_cost: float = 0.0
    """Weight of the entropy bonus, which keeps the policy exploring."""
    value_cost: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Gradients with a larger norm are scaled down to this one."""
    hidden: tuple[int, ...] = (128, 128)
    """Hidden layer widths of both the policy and the value network."""

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps per iteration; every agent acts in each."""
        return self.num_envs * self.horizon

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
        """Fresh environments and networks; the value function takes the observations of all agents."""
        assert env.team_size is not None
        team_size = env.team_size
        world_key, train_key, params_key = jax.random.split(key, 3)
        world = env.reset(keys_by_index(world_key, self.num_envs))
        agent, size = jnp.arange(env.num_agents), world.observation.shape[-1]

        def networks(key: jax.Array) -> Learner:
            policy_key, value_key = jax.random.split(key)
            params = {"policy": self._policy_net(env).init(policy_key, jnp.zeros((1, size)))}
            params["value"] = MLP(self.hidden, 1, 1.0).init(value_key, jnp.zeros((1, size * (1 + team_size))))
            return Learner(params, self._optimizer().init(params))

        agent_keys = jax.vmap(jax.random.fold_in, (None, 0))(params_key, agent)
        # Not vmap: batched QR decompositions, as of orthogonal weights, can wait forever for each other on few cores.
        learner = networks(params_key) if self.shared else jax.lax.map(networks, agent_keys)
        return State(world, learner, keys_by_index(train_key, self.num_envs), agent)

    def iterate(self, env: Environment, state: State) -> tuple[State, dict[str, jax.Array]]:
        """Act for `horizon` steps, then learn from them."""
        keys, act_keys, learn_keys = split_each(state.keys, 3)
        policy = state.learner.params["policy"]

        def tick(world: World, time: jax.Array) -> tuple[World, tuple[Transition, jax.Array]]:
            step_keys = fold_each(act_keys, time)
            action, log_prob = self.act(env, policy, world.observation, world.alive, step_keys, state.agent)
            world, transition = env.step(world, action)
            return world, (transition, log_prob)

        world, (trajectory, log_prob) = jax.lax.scan(tick, state.world, jnp.arange(self.horizon))
        learner, losses = self.learn(env, state.learner, trajectory, log_prob, learn_keys)
        return State(world, learner, keys, state.agent), losses

    @stage
    def act(
        self, env: Environment, policy: Any, observation: jax.Array, alive: jax.Array, keys: jax.Array, agent: Any
    ) -> tuple[jax.Array, jax.Array]:
        """Sample an action for every agent from its own observation, with its log-probability."""
        actions = self._policy(env, policy, _mask(alive, observation))
        agent_keys = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))(keys, agent)
        action = jax.vmap(Categorical.sample)(actions, agent_keys)
        return action, actions.log_prob(action)

    def decide(
        self, env: Environment, params: Any, observation: Any, alive: Any, memory: Any, keys: jax.Array | None
    ) -> tuple[Any, Any]:
        if keys is None:
            return self._policy(env, params["policy"], _mask(alive, observation)).mode(), memory
        return self.act(env, params["policy"], observation, alive, keys, jnp.arange(env.num_agents))[0], memory

    @stage
    def learn(
        self, env: Environment, learner: Learner, trajectory: Transition, log_prob: jax.Array, keys: jax.Array
    ) -> tuple[Learner, dict[str, jax.Array]]:
        """Update policy and value on one iteration's steps."""
        alive, next_alive = trajectory.alive, trajectory.next_alive
        observation = _mask(alive, trajectory.observation)
        everything = _joint(observation)
        value = self._value(learner.params, observation, everything)
        next_observation = _mask(next_alive, trajectory.next_observation)
        next_value = self._value(learner.params, next_observation, _joint(next_observation))
        # An agent that drops out gets no further reward: its episode has terminated.
        per_agent = trajectory._replace(terminated=~next_alive, truncated=_broadcast(trajectory.truncated, alive.shape))
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
        count = jnp.maximum(jnp.sum(batch.alive, dtype=jnp.float32), 1.0)
        masked = _mask(batch.alive, batch.advantage)
        mean, square = jnp.sum(masked) / count, jnp.sum(masked**2) / count
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
            losses = {name: jnp.sum(_mask(batch.alive, x)) / count for name, x in per_step.items()}
            total = losses["policy_loss"] + self.value_cost * losses["value_loss"]
            return total - self.entropy_cost * losses["entropy"], losses

        gradients, losses = jax.grad(loss, has_aux=True)(params)
        return gradients, (losses, value_fit(batch.target, batch.advantage, batch.alive))

    @stage
    def apply(self, learner: Learner, gradients: Any) -> Learner:
        """One optimizer step, or one per agent."""

        def update(learner: Learner, gradients: Any) -> Learner:
            updates, optimizer = self._optimizer().update(gradients, learner.optimizer, learner.params)
            return Learner(optax.apply_updates(learner.params, updates), optimizer)

        return update(learner, gradients) if self.shared else jax.vmap(update)(learner, gradients)

    def _optimizer(self) -> optax.GradientTransformation:
        updates = -(-self.total_steps // self.steps_per_iteration) * self.epochs * self.minibatches
        rate = linear_decay(self.learning_rate, updates) if self.anneal else self.learning_rate
        return clipped_adam(rate, self.max_grad_norm)

    def _policy(self, env: Environment, policy: Any, observation: jax.Array) -> Categorical:
        return Categorical(self._apply_net(self._policy_net(env), policy, observation))

    def _value(self, params: Any, observation: jax.Array, everything: jax.Array) -> jax.Array:
        rows = _broadcast(jnp.moveaxis(everything, -1, 0), (everything.shape[-1], *observation.shape[:-1]))
        inputs = jnp.concatenate([observation, jnp.moveaxis(rows, 0, -1)], axis=-1)
        return self._apply_net(MLP(self.hidden, 1, 1.0), params["value"], inputs)[..., 0]

    def _apply_net(self, net: MLP, params: Any, inputs: jax.Array) -> Any:
        """Apply one network to all agents, or each agent's own; agents are the last axis but one."""
        return net.apply(params, inputs) if self.shared else jax.vmap(net.apply, (0, -2), -2)(params, inputs)

    def _policy_net(self, env: Environment) -> MLP:
        assert isinstance(env.action_space, Discrete)
        return MLP(self.hidden, env.action_space.n, 0.01)


def _mask(alive: jax.Array, x: jax.Array) -> jax.Array:
    """Zero the entries of agents that dropped out, so that garbage in them has no effect."""
    return jnp.where(alive.reshape(*alive.shape, *[1] * (x.ndim - alive.ndim)), x, 0.0)


def _broadcast(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Repeat `x` for every agent, on a new last axis."""
    return jax.lax.broadcast_in_dim(x, shape, tuple(range(x.ndim)))


def _joint(observation: jax.Array) -> jax.Array:
    """The observations of all agents, concatenated."""
    return observation.reshape(*observation.shape[:-2], -1)
