"""Two particle environments of JaxMARL as teams, without its automatic reset, which loses the last observation."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from fragmenta.envs.packages import import_package
from fragmenta.envs.team import TeamEnvironment
from fragmenta_core.spaces import Box, Discrete

PUSHES = ((0.0, 0.0), (-1.0, 0.0), (1.0, 0.0), (0.0, -1.0), (0.0, 1.0))
"""The direction of acceleration of each of the five actions."""


@dataclasses.dataclass(frozen=True)
class ParticleTeam(TeamEnvironment):
    """Base class of the two: 25 steps without termination, five actions, agents that stay to the end."""

    max_steps: int = 25
    agents: int = dataclasses.field(default=3, kw_only=True)

    def __post_init__(self) -> None:
        self.original()  # so that a missing JaxMARL is reported at once

    def original(self) -> Any:
        """JaxMARL's environment, the same object for equal sizes."""
        raise NotImplementedError

    @property
    def observation_space(self) -> Box:
        """The size of the rows of `observe`; JaxMARL's own space of simple_tag is right for three chasers only."""
        rows = jax.eval_shape(lambda: self.observe(self.initial(jax.random.key(0))))
        return Box(-float("inf"), float("inf"), rows.shape[1:])

    @property
    def action_space(self) -> Discrete:
        """Do nothing, or accelerate left, right, down or up."""
        return Discrete(5)

    def initial(self, key: jax.Array) -> Any:
        """All entities at random positions, at rest."""
        return self.original().reset(key)[1]

    def observe(self, state: Any) -> jax.Array:
        """JaxMARL's observations of the learning agents."""
        return self._rows(self.original().get_obs(state))

    def advance(self, state: Any, action: jax.Array, key: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        """One JaxMARL step without reset, which never terminates."""
        actions = dict(zip(self.original().agents, [*action, *self.scripted(state)], strict=True))
        _, state, rewards, _, _ = self.original().step_env(key, state, actions)
        return state, self._rows(rewards), jnp.zeros((), bool)

    def scripted(self, state: Any) -> list[jax.Array]:
        """The actions of the agents that do not learn."""
        return []

    def _rows(self, by_name: dict[str, jax.Array]) -> jax.Array:
        learners = self.original().agents[: self.agents]  # they come first
        return jnp.stack([by_name[name] for name in learners])


@dataclasses.dataclass(frozen=True)
class SimpleSpread(ParticleTeam):
    """As many landmarks as agents: cover them all, and do not bump into each other."""

    def original(self) -> Any:
        """JaxMARL's simple_spread."""
        return _build("SimpleSpreadMPE", num_agents=self.agents, num_landmarks=self.agents)


@dataclasses.dataclass(frozen=True)
class SimpleTag(ParticleTeam):
    """Chasers learn to catch one faster runner, which flees by a fixed rule and stays in the arena."""

    def original(self) -> Any:
        """JaxMARL's simple_tag with one runner."""
        return _build("SimpleTagMPE", num_adversaries=self.agents, num_good_agents=1)

    def scripted(self, state: Any) -> list[jax.Array]:
        """The runner takes the action that soon brings it farthest from chasers, obstacles and the arena's edge."""
        world, runner = self.original(), self.agents
        velocity = (1 - world.damping) * state.p_vel[runner] + world.accel[runner] * world.dt * jnp.asarray(PUSHES)
        speed = jnp.linalg.norm(velocity, axis=-1, keepdims=True)
        ahead = state.p_pos[runner] + 0.4 * velocity * jnp.minimum(1.0, world.max_speed[runner] / (speed + 1e-6))
        distance = jnp.linalg.norm(ahead[:, None] - (state.p_pos + 0.2 * state.p_vel), axis=-1) - world.rad
        danger = jnp.exp(-distance / 0.2).at[:, runner].set(0.0)
        outside = jnp.maximum(jnp.abs(ahead) - 0.9, 0.0)
        return [jnp.argmin(danger.sum(axis=-1) + 10.0 * outside.sum(axis=-1))]


@functools.cache
def _build(name: str, **sizes: int) -> Any:
    particles = import_package("jaxmarl.environments.mpe", "jaxmarl")
    with jax.ensure_compile_time_eval():  # it creates arrays, which must be constants even inside a trace
        return getattr(particles, name)(**sizes)
