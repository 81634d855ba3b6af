"""Parallelised Q-network (Gallici et al., 2024): Q-learning without a replay and without target networks."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fragmenta.algorithms.encoding import Encoded
from fragmenta.algorithms.limits import COUNT, FRACTION, Limit
from fragmenta.algorithms.neural import Learner, NeuralAlgorithm
from fragmenta.envs import Discrete, Environment, Transition, World
from fragmenta.errors import ConfigError
from fragmenta.nn.q_networks import QNetwork
from fragmenta.rl import (
    fold_each,
    generalized_advantage,
    keys_by_index,
    next_values,
    split_each,
    steps_of_chunks,
    steps_of_minibatches,
    take_steps,
)
from fragmenta.rl.exploration import decayed, epsilon_greedy
from fragmenta.rl.masks import masked_logits
from fragmenta.rl.value_targets import of_action
from fragmenta.stage import stage


class PQNState(NamedTuple):
    """The state that one iteration passes to the next."""

    world: World
    learner: Learner
    keys: jax.Array
    iteration: jax.Array
    """How many iterations there were before."""
    memory: Any = ()
    """Memory of the episode, per environment, if there is one."""


class PQNSample(NamedTuple):
    """The parts of a step that the loss needs."""

    observation: Any
    action: jax.Array
    target: jax.Array


@dataclasses.dataclass(frozen=True)
class PQN(NeuralAlgorithm):
    """Values of actions from returns over many environments; normalised layers make up for replay and targets."""

    limits: ClassVar[dict[str, Limit]] = {
        "epochs": COUNT,
        "minibatches": COUNT,
        "return_lambda": FRACTION,
        "exploration": FRACTION,
        "final_exploration": FRACTION,
        "exploration_share": FRACTION,
    }

    without_memory: ClassVar[str] = ""
    in_chunks: ClassVar[bool] = True

    num_envs: int = 32
    horizon: int = 32
    learning_rate: float = 5e-4
    max_grad_norm: float = 10.0
    hidden: tuple[int, ...] = (128, 128)
    epochs: int = 4
    """Passes over each iteration's steps."""
    minibatches: int = 8
    """Minibatches per pass; each holds a slice of every environment's steps."""
    return_lambda: float = 0.9
    """How far returns look ahead before they rely on values: 0 is one step, 1 the whole episode."""
    exploration: float = 1.0
    """The probability of a random action at first."""
    final_exploration: float = 0.05
    """The probability of a random action in the end."""
    exploration_share: float = 0.2
    """The share of the run in which exploration falls to its final value."""

    def validate(self, env: Environment) -> None:
        super().validate(env)
        if not isinstance(env.action_space, Discrete) or env.team_size is not None:
            mismatch = f"{env.title} has {env.num_agents} with {env.action_space}"
            raise ConfigError(f"PQN trains one agent with Discrete actions, but {mismatch}: use ppo or mappo")
        if self.horizon % self.minibatches:
            problem = f"horizon {self.horizon} does not divide into {self.minibatches} minibatches"
            raise ConfigError(f"{problem}: choose a horizon that is a multiple of minibatches")

    def init(self, env: Environment, key: jax.Array) -> PQNState:
        world_key, train_key, params_key = jax.random.split(key, 3)
        world = env.reset(keys_by_index(world_key, self.num_envs))
        params, encoded = self.init_encoder(env, params_key, world.observation)
        params["q"] = self._network(env).init(params_key, encoded.actor)
        learner, memory = self.new_learner(params), self.fresh_memory(self.num_envs)
        return PQNState(world, learner, keys_by_index(train_key, self.num_envs), jnp.zeros((), jnp.int32), memory)

    def with_new_episodes(self, saved: PQNState, fresh: PQNState) -> PQNState:
        return super().with_new_episodes(saved, fresh)._replace(memory=fresh.memory)

    def iterate(self, env: Environment, state: PQNState) -> tuple[PQNState, dict[str, jax.Array]]:
        keys, act_keys, learn_keys = split_each(state.keys, 3)
        params, done = self.acting(self.params(state)), state.iteration.astype(jnp.float32) * self.steps_per_iteration

        def tick(carry: tuple[World, Any], time: jax.Array) -> tuple[tuple[World, Any], Transition]:
            world, memory = carry
            inputs = self.with_memory(world.observation, memory)
            action, after = self.act(env, params, inputs, fold_each(act_keys, time), done)
            world, transition = self.stepped(env, world, action)
            ended = transition.terminated | transition.truncated
            stored = self.with_memory(transition.observation, memory, ended)
            return (world, self.kept(ended, after)), transition._replace(observation=stored)

        (world, memory), trajectory = jax.lax.scan(tick, (state.world, state.memory), jnp.arange(self.horizon))
        learner, losses = self.learn(env, state.learner, trajectory, learn_keys)
        return PQNState(world, learner, keys, state.iteration + 1, memory), losses

    @stage
    def act(self, env: Environment, params: Any, observation: Any, keys: jax.Array, done: jax.Array) -> Any:
        """The best action of each environment or a random one, after `done` steps of the run, and the next memory."""
        memory, encoded = self.remember(env, params, observation)
        values = self.values_of(env, params, encoded)
        decay = self.exploration_share * self.total_steps
        epsilon = jnp.full(values.shape[:-1], decayed(self.exploration, self.final_exploration, done, decay))
        return epsilon_greedy(keys, values, epsilon, encoded.legal), memory

    def decide(
        self, env: Environment, params: Any, observation: Any, alive: Any, memory: Any, keys: jax.Array | None
    ) -> tuple[Any, Any]:
        params = self.acting(params)
        memory, encoded = self.remember(env, params, self.with_memory(observation, memory))
        return jnp.argmax(self.values_of(env, params, encoded), axis=-1).astype(jnp.int32), memory

    @stage
    def learn(
        self, env: Environment, learner: Learner, trajectory: Transition, keys: jax.Array
    ) -> tuple[Learner, dict[str, jax.Array]]:
        """Update the values on one iteration's steps, towards returns that are computed once."""

        def value_of(observation: Any) -> jax.Array:
            return best(self.encode(env, learner.params, observation))

        def best(encoded: Encoded) -> jax.Array:
            return jnp.max(self.values_of(env, learner.params, encoded), axis=-1)

        encoded, trajectory = self.with_next_memory(env, learner.params, trajectory)
        value = best(encoded)
        next_value = next_values(value_of, value, trajectory, env.shortest_cut)
        target = value + generalized_advantage(trajectory, value, next_value, self.gamma, self.return_lambda)
        samples = PQNSample(trajectory.observation, trajectory.action, target)

        def epoch(learner: Learner, index: jax.Array) -> tuple[Learner, Any]:
            steps_of = steps_of_chunks if self.remembers else steps_of_minibatches
            return jax.lax.scan(minibatch, learner, steps_of(fold_each(keys, index), self.horizon, self.minibatches))

        def minibatch(learner: Learner, steps: jax.Array) -> tuple[Learner, Any]:
            gradients, losses = self.gradient(env, learner.params, take_steps(samples, steps))
            return self.apply(learner, gradients), losses

        learner, losses = jax.lax.scan(epoch, learner, jnp.arange(self.epochs))
        return learner, jax.tree.map(jnp.mean, losses)

    @stage
    def gradient(self, env: Environment, params: Any, batch: PQNSample) -> tuple[Any, dict[str, jax.Array]]:
        """The gradient of the squared error on one minibatch, and the loss and value of every step."""

        def loss(params: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
            values = self.values_of(env, params, self.encode_all(env, params, batch.observation))
            value = of_action(values, batch.action)
            error = 0.5 * (value - batch.target) ** 2
            # Of every step: a mean in each update, only to report it, can take as long as a layer.
            return jnp.mean(error), {"loss": error, "value": value}

        return jax.grad(loss, has_aux=True)(params)

    @stage
    def apply(self, learner: Learner, gradients: Any) -> Learner:
        """One optimizer step."""
        return self.updated(learner, gradients)

    def values_of(self, env: Environment, params: Any, encoded: Encoded) -> jax.Array:
        """The expected return of every action; of illegal ones, one too low to be chosen."""
        outputs: Any = self._network(env).apply(params["q"], encoded.actor)
        return masked_logits(outputs[..., 0], encoded.legal)

    def share_done(self, state: PQNState) -> jax.Array:
        return jnp.minimum(state.iteration / float(self.iterations), 1.0)

    @property
    def updates_per_iteration(self) -> int:
        return self.epochs * self.minibatches

    def _network(self, env: Environment) -> QNetwork:
        assert isinstance(env.action_space, Discrete)
        return QNetwork(self.hidden, env.action_space.n, layer_norm=True, compute=self.compute_type)
