"""Value decomposition for teams: VDN (Sunehag et al., 2017) adds up the agents' values, QMIX (Rashid et al., 2018)
mixes them."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fragmenta.algorithms.encoding import Encoded
from fragmenta.algorithms.limits import COUNT, FRACTION, Limit
from fragmenta.algorithms.off_policy import OffPolicy, TargetLearner
from fragmenta.algorithms.team import NO_MEMORY, TeamNetworks
from fragmenta.envs import Discrete, Environment, World
from fragmenta.nn.mixing import Mixer
from fragmenta.nn.q_networks import QNetwork
from fragmenta.rl.exploration import decayed, epsilon_greedy
from fragmenta.rl.masks import masked_logits
from fragmenta.rl.replay import Batch
from fragmenta.rl.teams import TeamView, joint, keys_of_agents, mask_absent
from fragmenta.rl.value_targets import of_action
from fragmenta.stage import stage


@dataclasses.dataclass(frozen=True)
class VDN(OffPolicy, TeamNetworks):
    """The value of a team is the sum of its agents' values, each from its own observation.

    The reward of the team is the mean over its agents, as in reported returns; agents that dropped out have none and
    add no value. Next actions are chosen by the networks and valued by the target networks.
    """

    without_memory: ClassVar[str] = NO_MEMORY

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
        def init(key: jax.Array) -> dict[str, Any]:
            params, encoded = self.init_agent(env, key, observation)
            return {**params, "q": self._network(env).init(key, self.empty_inputs(env, encoded.actor.shape[-1]))}

        return self.init_each(env, init, key)

    def view(self, world: World) -> TeamView:
        return TeamView(world.observation, world.alive)

    @stage
    def act(self, env: Environment, params: Any, observation: TeamView, keys: jax.Array, steps: jax.Array) -> jax.Array:
        """The best legal action of every agent, or a random one."""
        encoded = self.encode_each(env, params, observation)
        decay = self.exploration_share * self.total_steps
        epsilon = jnp.full(env.num_agents, decayed(self.exploration, self.final_exploration, steps, decay))

        def explore(keys: jax.Array, values: jax.Array, legal: jax.Array | None) -> jax.Array:
            return epsilon_greedy(keys, values, epsilon, legal)

        values = self.values(env, params, encoded)
        return jax.vmap(explore)(keys_of_agents(keys, env.num_agents), values, encoded.legal)

    def decide(
        self, env: Environment, params: Any, observation: Any, alive: Any, memory: Any, keys: jax.Array | None
    ) -> tuple[Any, Any]:
        params = self.acting(params)
        return self.best(env, params, self.encode_each(env, params, TeamView(observation, alive))), memory

    @stage
    def gradient(self, env: Environment, learner: TargetLearner, batch: Batch, keys: jax.Array) -> tuple[Any, Any]:
        """The gradient of the squared error of the team's value, the error of every step, and the losses."""
        view, next_view = TeamView(batch.observation, batch.alive), TeamView(batch.next_observation, batch.next_alive)
        target, next_encoded = learner.target, self.encode_each(env, learner.target, next_view)
        best = self.best(env, learner.params, self.encode_each(env, learner.params, next_view))
        following = of_action(self.values(env, target, next_encoded), best)
        next_value = self.team_value(target, mask_absent(batch.next_alive, following), next_encoded)
        goal = jnp.mean(batch.reward, axis=-1) + batch.discount * next_value

        def loss(params: Any) -> tuple[jax.Array, tuple[jax.Array, dict[str, jax.Array]]]:
            encoded = self.encode_each(env, params, view)
            values = of_action(self.values(env, params, encoded), batch.action)
            value = self.team_value(params, mask_absent(batch.alive, values), encoded)
            total = 0.5 * jnp.mean(batch.weight * (value - goal) ** 2)
            return total, (value - goal, {"loss": total, "value": jnp.mean(value)})

        return jax.grad(loss, has_aux=True)(learner.params)

    def values(self, env: Environment, params: Any, encoded: Encoded) -> jax.Array:
        """What every agent's network says about its actions; very low for illegal ones."""
        outputs = self.apply_each(self._network(env), params["q"], self.numbered(env, encoded.actor), axis=-3)
        return masked_logits(outputs[..., 0], encoded.legal)

    def best(self, env: Environment, params: Any, encoded: Encoded) -> jax.Array:
        """The legal action with the highest value, of every agent."""
        return jnp.argmax(self.values(env, params, encoded), axis=-1).astype(jnp.int32)

    def team_value(self, params: Any, values: jax.Array, encoded: Encoded) -> jax.Array:
        """The value of the team, from the values of its agents, which are zero for those that dropped out."""
        return jnp.sum(values, axis=-1)

    def over_copies(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return function if name == "mixer" else self.over_agents(function)

    def _network(self, env: Environment) -> QNetwork:
        assert isinstance(env.action_space, Discrete)
        return QNetwork(self.hidden, env.action_space.n, compute=self.compute_type)


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
    critic_only: tuple[str, ...] = ()
    """Parts of the observations that only the mixing network sees, such as the simulator's state."""

    @property
    def critic_parts(self) -> tuple[str, ...]:
        return self.critic_only

    def init_params(self, env: Environment, key: jax.Array, observation: Any) -> dict[str, Any]:
        assert env.team_size is not None
        encoded = jax.eval_shape(lambda: self.init_agent(env, key, observation)[1])
        everything = jnp.zeros((1, env.team_size * encoded.critic.shape[-1]))
        mixer = self._mixer().init(jax.random.fold_in(key, env.team_size), jnp.zeros((1, env.team_size)), everything)
        return {**super().init_params(env, key, observation), "mixer": mixer}

    def team_value(self, params: Any, values: jax.Array, encoded: Encoded) -> jax.Array:
        mixed: Any = self._mixer().apply(params["mixer"], values, joint(encoded.critic))
        return mixed

    def _mixer(self) -> Mixer:
        return Mixer(self.mixing, self.hypernetwork, self.compute_type)
