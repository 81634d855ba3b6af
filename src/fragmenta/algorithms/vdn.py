"""Value decomposition for teams: VDN (Sunehag et al., 2017) adds up the agents' values, QMIX (Rashid et al., 2018)
mixes them."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fragmenta.algorithms.limits import COUNT, FRACTION, Limit
from fragmenta.algorithms.off_policy import OffPolicy, TargetLearner
from fragmenta.algorithms.team import TeamNetworks, vector_space
from fragmenta.envs import Discrete, Environment
from fragmenta.nn.mixing import Mixer
from fragmenta.nn.q_networks import QNetwork
from fragmenta.rl.exploration import decayed, epsilon_greedy
from fragmenta.rl.masks import masked_logits
from fragmenta.rl.replay import Batch
from fragmenta.rl.teams import TeamView, joint, keys_of_agents, mask_absent, team_view
from fragmenta.rl.value_targets import of_action
from fragmenta.stage import stage


@dataclasses.dataclass(frozen=True)
class VDN(TeamNetworks, OffPolicy):
    """The value of a team is the sum of its agents' values, each from its own observation.

    The reward of the team is the mean over its agents, as in reported returns; agents that dropped out have none and
    add no value. Next actions are chosen by the networks and valued by the target networks.
    """

    limits: ClassVar[dict[str, Limit]] = {
        "exploration": FRACTION,
        "final_exploration": FRACTION,
        "exploration_share": FRACTION,
    }

    num_envs: int = 16
    total_steps: int = 1_000_000
    horizon: int = 4
    learning_rate: float = 5e-4
    anneal: bool = True
    gamma: float = 0.9
    hidden: tuple[int, ...] = (128, 128)
    batch_size: int = 256
    buffer_size: int = 200_000
    updates: int = 4
    target_every: int = 200
    exploration: float = 1.0
    """The probability of a random action at first."""
    final_exploration: float = 0.05
    """The probability of a random action in the end."""
    exploration_share: float = 0.1
    """The share of the run in which exploration falls to its final value."""

    def init_params(self, env: Environment, key: jax.Array, observation: Any) -> dict[str, Any]:
        inputs = self.numbered(env, jnp.zeros((1, env.num_agents, *vector_space(env).shape)))[:, 0]
        return {"q": self.init_each(env, lambda key: self._network(env).init(key, inputs), key)}

    @stage
    def act(self, env: Environment, params: Any, observation: TeamView, keys: jax.Array, steps: jax.Array) -> jax.Array:
        """The best legal action of every agent, or a random one."""
        values = self.values(env, params, observation)
        decay = self.exploration_share * self.total_steps
        epsilon = jnp.full(env.num_agents, decayed(self.exploration, self.final_exploration, steps, decay))

        def explore(keys: jax.Array, values: jax.Array, legal: jax.Array | None) -> jax.Array:
            return epsilon_greedy(keys, values, epsilon, legal)

        return jax.vmap(explore)(keys_of_agents(keys, env.num_agents), values, observation.legal)

    def decide(
        self, env: Environment, params: Any, observation: Any, alive: Any, memory: Any, keys: jax.Array | None
    ) -> tuple[Any, Any]:
        return self.best(env, self.acting(params), team_view(observation, alive)), memory

    @stage
    def gradient(self, env: Environment, learner: TargetLearner, batch: Batch, keys: jax.Array) -> tuple[Any, Any]:
        """The gradient of the squared error of the team's value, the error of every step, and the losses."""
        view = team_view(batch.observation, batch.alive)
        next_view, target = team_view(batch.next_observation, batch.next_alive), learner.target
        following = of_action(self.values(env, target, next_view), self.best(env, learner.params, next_view))
        next_value = self.team_value(target, mask_absent(batch.next_alive, following), next_view)
        goal = jnp.mean(batch.reward, axis=-1) + batch.discount * next_value

        def loss(params: Any) -> tuple[jax.Array, tuple[jax.Array, dict[str, jax.Array]]]:
            values = of_action(self.values(env, params, view), batch.action)
            value = self.team_value(params, mask_absent(batch.alive, values), view)
            total = 0.5 * jnp.mean(batch.weight * (value - goal) ** 2)
            return total, (value - goal, {"loss": total, "value": jnp.mean(value)})

        return jax.grad(loss, has_aux=True)(learner.params)

    def values(self, env: Environment, params: Any, view: TeamView) -> jax.Array:
        """What every agent's network says about its actions; very low for illegal ones."""
        outputs = self.apply_each(self._network(env), params["q"], self.numbered(env, view.features), axis=-3)
        return masked_logits(outputs[..., 0], view.legal)

    def best(self, env: Environment, params: Any, view: TeamView) -> jax.Array:
        """The legal action with the highest value, of every agent."""
        return jnp.argmax(self.values(env, params, view), axis=-1).astype(jnp.int32)

    def team_value(self, params: Any, values: jax.Array, view: TeamView) -> jax.Array:
        """The value of the team, from the values of its agents, which are zero for those that dropped out."""
        return jnp.sum(values, axis=-1)

    def over_copies(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return self.over_agents(function) if name == "q" else function

    def _network(self, env: Environment) -> QNetwork:
        assert isinstance(env.action_space, Discrete)
        return QNetwork(self.hidden, env.action_space.n, compute=self.compute)


@dataclasses.dataclass(frozen=True)
class QMIX(VDN):
    """The value of a team is a network of its agents' values that never falls as one of them rises, so that each agent
    finds its part of the best joint action alone. Its weights depend on what all agents observe."""

    limits: ClassVar[dict[str, Limit]] = {"mixing": COUNT, "hypernetwork": COUNT}

    learning_rate: float = 1e-3
    mixing: int = 32
    """Hidden units of the mixing network."""
    hypernetwork: int = 64
    """Hidden units of the networks that make the weights of the mixing network."""

    def init_params(self, env: Environment, key: jax.Array, observation: Any) -> dict[str, Any]:
        assert env.team_size is not None
        everything = jnp.zeros((1, env.team_size * vector_space(env).shape[0]))
        mixer = self._mixer().init(jax.random.fold_in(key, env.team_size), jnp.zeros((1, env.team_size)), everything)
        return {**super().init_params(env, key, observation), "mixer": mixer}

    def team_value(self, params: Any, values: jax.Array, view: TeamView) -> jax.Array:
        mixed: Any = self._mixer().apply(params["mixer"], values, joint(view.features))
        return mixed

    def _mixer(self) -> Mixer:
        return Mixer(self.mixing, self.hypernetwork, self.compute)
