"""The policies and value functions of the agents of a team, which may remember the episode."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from fragmenta.algorithms.action_spaces import distribution_over, outputs_for
from fragmenta.algorithms.encoding import Encoded
from fragmenta.algorithms.team import TeamNetworks
from fragmenta.envs import Box, Discrete, Environment, MultiDiscrete
from fragmenta.rl import Categorical, MultiCategorical, Normal
from fragmenta.rl.distributions import RowNormal
from fragmenta.rl.masks import masked_logits
from fragmenta.rl.teams import TeamView, beside_joint, joint, keys_of_agents
from fragmenta.stage import stage


class ActInfo(NamedTuple):
    """What acting records for learning."""

    log_prob: jax.Array
    memory: Any = ()
    """Before the step, if there is one."""


@dataclasses.dataclass(frozen=True)
class TeamActors(TeamNetworks):
    """A policy of every agent on what it sees itself, and a value function of that or of what all agents see."""

    without_memory: ClassVar[str] = ""

    is_centralised: ClassVar[bool] = True
    """Whether the value function takes what all agents see."""

    critic_only: tuple[str, ...] = ()
    """Parts of the observations that only the value function sees, such as the simulator's state."""

    @property
    def critic_parts(self) -> tuple[str, ...]:
        return self.critic_only

    @property
    def action_kinds(self) -> str:
        return "discrete, multi-discrete or continuous (vector)"

    def takes_actions(self, env: Environment) -> bool:
        space = env.action_space
        if isinstance(space, Box):
            return len(space.shape) == 1 and space.dtype.startswith("float")
        return isinstance(space, Discrete | MultiDiscrete)

    def init_networks(self, env: Environment, key: jax.Array, observation: Any) -> dict[str, Any]:
        """The networks of one agent by name; `observation` is that of all agents."""
        assert env.team_size is not None
        policy_key, value_key = jax.random.split(key)
        params, encoded = self.init_agent(env, key, observation)
        params["policy"] = self._policy_net(env).init(policy_key, self.empty_inputs(env, encoded.actor.shape[-1]))
        width = encoded.critic.shape[-1] * (1 + env.team_size if self.is_centralised else 1)
        params["value"] = self.head(1, 1.0).init(value_key, self.empty_inputs(env, width))
        if isinstance(env.action_space, Box):
            params["log_std"] = jnp.zeros(env.action_space.shape)
        return params

    @stage
    def act(
        self, env: Environment, params: Any, view: TeamView, memory: Any, keys: jax.Array
    ) -> tuple[jax.Array, tuple[jax.Array, Any]]:
        """Sample an action for every agent, with its log-probability and the next memory."""
        memory, encoded = self.remember_each(env, params, view, memory)
        actions = self.policy(env, params, encoded)
        action = jax.vmap(lambda each, keys: each.sample(keys))(actions, keys_of_agents(keys, env.num_agents))
        return action, (actions.log_prob(action), memory)

    def decide(
        self, env: Environment, params: Any, observation: Any, alive: Any, memory: Any, keys: jax.Array | None
    ) -> tuple[Any, Any]:
        params, view = self.acting(params), TeamView(observation, alive)
        if keys is not None:
            action, (_, memory) = self.act(env, params, view, memory, keys)
            return action, memory
        memory, encoded = self.remember_each(env, params, view, memory)
        return self.policy(env, params, encoded).mode(), memory

    def policy(self, env: Environment, params: Any, encoded: Encoded) -> Categorical | MultiCategorical | Normal:
        """The distribution of every agent's legal actions."""
        inputs = self.numbered(env, encoded.actor)
        outputs = masked_logits(self.apply_each(self._policy_net(env), params["policy"], inputs), encoded.legal)
        if isinstance(env.action_space, Box):
            return RowNormal(outputs, jnp.broadcast_to(params["log_std"], outputs.shape))
        return distribution_over(env.action_space, outputs, None)

    def value(self, env: Environment, params: Any, encoded: Encoded, everything: Any = None) -> jax.Array:
        """The value of what every agent sees, and of `everything` that all of them see if it is centralised."""
        inputs = encoded.critic
        if self.is_centralised:
            inputs = beside_joint(inputs, joint(inputs) if everything is None else everything)
        return self.apply_each(self.head(1, 1.0), params["value"], self.numbered(env, inputs))[..., 0]

    def _policy_net(self, env: Environment) -> nn.Module:
        return self.head(outputs_for(env.action_space), 0.01)
