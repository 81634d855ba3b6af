"""PPO for teams: MAPPO (Yu et al., 2022), whose value function sees all agents' observations, and IPPO (de Witt et al.,
2020), whose value function sees those of its own agent."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from fragmenta.algorithms.actor_critic import ActorCritic, State
from fragmenta.algorithms.limits import Limit
from fragmenta.algorithms.neural import Learner, NeuralAlgorithm
from fragmenta.algorithms.ppo import PPO
from fragmenta.algorithms.team import TeamNetworks, vector_space
from fragmenta.envs import Discrete, Environment, Transition, World
from fragmenta.errors import ConfigError
from fragmenta.rl import Categorical, fold_each, keys_by_index, split_each, steps_of_minibatches, take_steps
from fragmenta.rl.masks import masked_logits
from fragmenta.rl.returns import ValueFit, explained_variance, generalized_advantage, value_fit
from fragmenta.rl.teams import TeamView, beside_joint, for_each_agent, joint, keys_of_agents, mean_present, team_view
from fragmenta.stage import stage


class Sample(NamedTuple):
    """The parts of a step that the loss needs."""

    view: TeamView
    everything: Any
    """All agents' observations, for a centralised value function; joined once, not in every minibatch."""
    action: jax.Array
    log_prob: jax.Array
    advantage: jax.Array
    target: jax.Array
    alive: jax.Array


@dataclasses.dataclass(frozen=True)
class MAPPO(TeamNetworks, NeuralAlgorithm):
    """PPO for a team with a centralised value function; agents that dropped out are masked."""

    allows_lag: ClassVar[bool] = True  # the ratio in the loss is to the policy that acted

    limits: ClassVar[dict[str, Limit]] = {**ActorCritic.limits, **PPO.limits}
    is_centralised: ClassVar[bool] = True
    """Whether the value function takes the observations of all agents."""

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
        assert env.team_size is not None
        world_key, train_key, params_key = jax.random.split(key, 3)
        world = env.reset(keys_by_index(world_key, self.num_envs))
        size = vector_space(env).shape[0]
        inputs = size * (1 + env.team_size) if self.is_centralised else size

        def networks(key: jax.Array) -> Learner:
            policy_key, value_key = jax.random.split(key)
            params = {"policy": self._policy_net(env).init(policy_key, jnp.zeros((1, size)))}
            params["value"] = self.head(1, 1.0).init(value_key, jnp.zeros((1, inputs)))
            return self.new_learner(params)

        learner, keys = self.init_each(env, networks, params_key), keys_by_index(train_key, self.num_envs)
        return State(world, learner, keys)

    def iterate(self, env: Environment, state: State) -> tuple[State, dict[str, jax.Array]]:
        keys, act_keys, learn_keys = split_each(state.keys, 3)
        policy = self.acting(state.learner.params["policy"])

        def tick(world: World, time: jax.Array) -> tuple[World, tuple[Transition, jax.Array]]:
            action, log_prob = self.act(env, policy, world.observation, world.alive, fold_each(act_keys, time))
            world, transition = self.stepped(env, world, action)
            return world, (transition, log_prob)

        world, (trajectory, log_prob) = jax.lax.scan(tick, state.world, jnp.arange(self.horizon))
        learner, losses = self.learn(env, state.learner, trajectory, log_prob, learn_keys)
        return State(world, learner, keys), losses

    @stage
    def act(
        self, env: Environment, policy: Any, observation: Any, alive: jax.Array, keys: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Sample an action for every agent from its own observation, with its log-probability."""
        actions = self.policy(env, policy, team_view(observation, alive))
        action = jax.vmap(Categorical.sample)(actions, keys_of_agents(keys, env.num_agents))
        return action, actions.log_prob(action)

    def decide(
        self, env: Environment, params: Any, observation: Any, alive: Any, memory: Any, keys: jax.Array | None
    ) -> tuple[Any, Any]:
        if keys is None:
            return self.policy(env, params["policy"], team_view(observation, alive)).mode(), memory
        return self.act(env, params["policy"], observation, alive, keys)[0], memory

    @stage
    def learn(
        self, env: Environment, learner: Learner, trajectory: Transition, log_prob: jax.Array, keys: jax.Array
    ) -> tuple[Learner, dict[str, jax.Array]]:
        """Update policy and value on one iteration's steps."""
        alive, next_alive = trajectory.alive, trajectory.next_alive
        view = team_view(trajectory.observation, alive)
        everything, next_view = self._joint(view), team_view(trajectory.next_observation, next_alive)
        value = self.value(learner.params, view, everything)
        next_value = self.value(learner.params, next_view, self._joint(next_view))
        # An agent that drops out gets no further reward: its episode has terminated.
        truncated = for_each_agent(trajectory.truncated, alive.shape)
        per_agent = trajectory._replace(terminated=~next_alive, truncated=truncated)
        advantage = generalized_advantage(per_agent, value, next_value, self.gamma, self.gae_lambda)
        samples = Sample(view, everything, trajectory.action, log_prob, advantage, advantage + value, alive)

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
            policy = self.policy(env, params["policy"], batch.view)
            log_ratio = policy.log_prob(batch.action) - batch.log_prob
            ratio = jnp.exp(log_ratio)
            clipped = jnp.clip(ratio, 1 - self.clip, 1 + self.clip)
            value = self.value(params, batch.view, batch.everything)
            policy_loss = -jnp.minimum(ratio * advantage, clipped * advantage)
            per_step = {"policy_loss": policy_loss, "entropy": policy.entropy()}
            per_step |= {"value_loss": 0.5 * (value - batch.target) ** 2, "kl": ratio - 1 - log_ratio}
            losses = {name: mean_present(batch.alive, x) for name, x in per_step.items()}
            total = losses["policy_loss"] + self.value_cost * losses["value_loss"]
            return total - self.entropy_cost * losses["entropy"], losses

        gradients, losses = jax.grad(loss, has_aux=True)(params)
        return gradients, (losses, value_fit(batch.target, batch.advantage, batch.alive))

    @stage
    def apply(self, learner: Learner, gradients: Any) -> Learner:
        """One optimizer step, or one per agent."""
        return self.over_agents(self.updated)(learner, gradients)

    @property
    def updates_per_iteration(self) -> int:
        return self.epochs * self.minibatches

    def policy(self, env: Environment, policy: Any, view: TeamView) -> Categorical:
        """The distribution of every agent's legal actions."""
        return Categorical(masked_logits(self.apply_each(self._policy_net(env), policy, view.features), view.legal))

    def value(self, params: Any, view: TeamView, everything: Any) -> jax.Array:
        """The value of every agent's observation, and of all of them if it is centralised."""
        inputs = beside_joint(view.features, everything) if self.is_centralised else view.features
        return self.apply_each(self.head(1, 1.0), params["value"], inputs)[..., 0]

    def _joint(self, view: TeamView) -> Any:
        return joint(view.features) if self.is_centralised else ()

    def _policy_net(self, env: Environment) -> nn.Module:
        assert isinstance(env.action_space, Discrete)
        return self.head(env.action_space.n, 0.01)


@dataclasses.dataclass(frozen=True)
class IPPO(MAPPO):
    """PPO for a team in which every agent learns from its own observations alone."""

    is_centralised: ClassVar[bool] = False
