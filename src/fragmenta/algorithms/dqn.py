"""Deep Q-networks (Mnih et al., 2015) with the extensions of Rainbow (Hessel et al., 2018) as switches."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fragmenta.algorithms.distributional import Distributional
from fragmenta.algorithms.encoding import Encoded
from fragmenta.algorithms.limits import FRACTION, Limit
from fragmenta.algorithms.off_policy import OffPolicyState, TargetLearner
from fragmenta.algorithms.standardizing import Standardizing
from fragmenta.envs import Box, Discrete, Environment
from fragmenta.errors import ConfigError
from fragmenta.nn.q_networks import QNetwork
from fragmenta.rl.exploration import decayed, epsilon_greedy
from fragmenta.rl.masks import masked_logits
from fragmenta.rl.value_targets import outputs_of_action
from fragmenta.stage import stage


@dataclasses.dataclass(frozen=True)
class DQN(Standardizing, Distributional):
    """Values of actions from replayed steps; explores by random actions, or by noisy weights."""

    limits: ClassVar[dict[str, Limit]] = {
        "exploration": FRACTION,
        "final_exploration": FRACTION,
        "exploration_share": FRACTION,
    }
    used_if: ClassVar[dict[str, dict[str, Any]]] = {
        name: {"noisy": False, "ladder": False} for name in ("exploration", "final_exploration", "exploration_share")
    }
    without_memory: ClassVar[str] = "use r2d2, which is dqn with a memory, from replayed sequences"

    learning_rate: float = 5e-4
    anneal: bool = True
    updates: int = 2
    n_step: int = 3
    buffer_size: int = 50_000
    hidden: tuple[int, ...] = (128, 128)
    target_every: int = 100
    exploration: float = 1.0
    """The probability of a random action at first."""
    final_exploration: float = 0.05
    """The probability of a random action in the end."""
    exploration_share: float = 0.2
    """The share of the run in which exploration falls to its final value."""
    ladder: bool = False
    """Explore at a rate of its own in every environment, from 0.4 to 0.4 ** 8 (Horgan et al., 2018), all the time."""
    double: bool = True
    """Choose the next action by the network and value it by the target network (van Hasselt et al., 2016)."""
    dueling: bool = False
    """Separate streams for the value and the advantages of actions."""
    noisy: bool = False
    """Noisy weights instead of random actions."""

    def validate(self, env: Environment) -> None:
        super().validate(env)
        if not isinstance(env.action_space, Discrete):
            problem = f"{type(self).__name__} does not support action space {env.action_space}"
            raise ConfigError(
                f"{problem}: it takes Discrete; use {'sac' if isinstance(env.action_space, Box) else 'ppo'}"
            )
        if self.ladder and self.noisy:
            raise ConfigError("ladder and noisy are two ways to explore, of which noisy would be used: leave one out")

    def init_params(self, env: Environment, key: jax.Array, observation: Any) -> dict[str, Any]:
        params, encoded = self.init_encoder(env, key, observation)
        return {**params, "q": self._network(env).init(key, encoded.actor)}

    @stage
    def act(self, env: Environment, params: Any, observation: Any, keys: jax.Array, explore: jax.Array) -> jax.Array:
        """The best action of each environment or, with its probability `explore`, a random one."""
        if self.noisy:
            rows = jax.tree.map(lambda x: x[:, None], observation)
            noisy = jax.vmap(lambda row, key: self.values(env, params, row, key)[0])
            return jnp.argmax(noisy(rows, keys), axis=-1).astype(jnp.int32)
        encoded = self.encode(env, params, observation)
        return epsilon_greedy(keys, self.values_of(env, params, encoded), explore, encoded.legal)

    def exploring(self, state: OffPolicyState, steps: jax.Array) -> jax.Array:
        """The probability of a random action in each environment."""
        if self.ladder:
            return 0.4 ** (1.0 + 7.0 * state.env_index / jnp.maximum(1, state.envs - 1))
        decay = self.exploration_share * self.total_steps
        return jnp.full(self.num_envs, decayed(self.exploration, self.final_exploration, steps, decay))

    def decide(
        self, env: Environment, params: Any, observation: Any, alive: Any, memory: Any, keys: jax.Array | None
    ) -> tuple[Any, Any]:
        return jnp.argmax(self.values(env, self.acting(params), observation), axis=-1).astype(jnp.int32), memory

    @stage
    def gradient(self, env: Environment, learner: TargetLearner, batch: Any, keys: jax.Array) -> tuple[Any, Any]:
        """The gradient of the loss on a batch, the error of every step, and the losses."""
        params, target = learner.params, learner.target
        noise = jax.random.split(jax.random.fold_in(learner.key, learner.updates))
        online_key, target_key = noise if self.noisy else (None, None)
        following = self.outputs(env, target, self.encode(env, target, batch.next_observation), target_key)
        chooser, chooser_key = (params, online_key) if self.double else (target, target_key)
        choices = self.values(env, chooser, batch.next_observation, chooser_key)
        following = outputs_of_action(following, jnp.argmax(choices, axis=-1))

        def loss(params: Any) -> tuple[jax.Array, tuple[jax.Array, dict[str, jax.Array]]]:
            outputs = self.outputs(env, params, self.encode(env, params, batch.observation), online_key)
            outputs = outputs_of_action(outputs, batch.action)
            each, error = self.return_form.errors(outputs, following, batch.reward, batch.discount)
            total = jnp.mean(batch.weight * each)
            return total, (error, {"loss": total, "value": jnp.mean(self.return_form.mean(outputs))})

        return jax.grad(loss, has_aux=True)(params)

    def values(self, env: Environment, params: Any, observation: Any, key: jax.Array | None = None) -> jax.Array:
        """The expected return of every action; of illegal ones, one too low to be chosen."""
        return self.values_of(env, params, self.encode(env, params, observation), key)

    def values_of(self, env: Environment, params: Any, encoded: Encoded, key: jax.Array | None = None) -> jax.Array:
        """The same, of encoded observations."""
        return masked_logits(self.return_form.mean(self.outputs(env, params, encoded, key)), encoded.legal)

    def outputs(self, env: Environment, params: Any, encoded: Encoded, key: jax.Array | None = None) -> jax.Array:
        """What the network says about every action: a mean, logits of atoms, or quantiles, on the last axis."""
        outputs: Any = self._network(env).apply(params["q"], encoded.actor, key)
        return outputs

    def _network(self, env: Environment) -> QNetwork:
        assert isinstance(env.action_space, Discrete)
        return QNetwork(
            self.hidden, env.action_space.n, self.return_form.size, self.dueling, self.noisy, compute=self.compute_type
        )
