"""Shared by algorithms with a replay: its size, what is drawn from it, and its stages."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fragmenta.algorithms.axis import Axis
from fragmenta.algorithms.limits import COUNT, FRACTION, Limit
from fragmenta.algorithms.neural import NeuralAlgorithm
from fragmenta.envs import Box, Environment, Transition, World
from fragmenta.errors import ConfigError
from fragmenta.rl.frames import single_frames
from fragmenta.rl.priorities import set_rows
from fragmenta.rl.replay import Replay, insert_steps, sample_steps
from fragmenta.stage import stage

MOST_ROWS = 2**31 - 1
"""More cannot be numbered."""


@dataclasses.dataclass(frozen=True)
class Replaying(NeuralAlgorithm):
    """Keeps the latest steps of every environment, and draws batches from them."""

    limits: ClassVar[dict[str, Limit]] = {
        "batch_size": COUNT,
        "buffer_size": Limit(1, MOST_ROWS, whole=True),
        "learning_starts": Limit(0, MOST_ROWS),
        "updates": COUNT,
        "n_step": COUNT,
        "priority_exponent": FRACTION,
        "importance": FRACTION,
    }
    used_if: ClassVar[dict[str, dict[str, Any]]] = {
        name: {"prioritized": True} for name in ("priority_exponent", "importance")
    }

    num_envs: int = 8
    horizon: int = 4
    anneal: bool = False
    max_grad_norm: float = 10.0
    batch_size: int = 128
    """Steps per update, in total; every environment contributes the same number of them."""
    buffer_size: int = 100_000
    """Steps that the replay holds, in total; every environment has a ring for its part of them."""
    learning_starts: int = 1_000
    """Steps in the replay before the first update."""
    updates: int = 8
    """Updates per iteration."""
    n_step: int = 1
    """How many rewards a target sums before it relies on the value of an observation."""
    prioritized: bool = False
    """Draw steps with large errors more often (Schaul et al., 2016)."""
    priority_exponent: float = 0.6
    """How much priorities matter: 0 is not at all."""
    importance: float = 0.4
    """How far weights make up for priorities, at first; it grows to 1 over the run."""

    def validate(self, env: Environment) -> None:
        super().validate(env)
        self.check_agents(env)
        if self.batch_size % self.num_envs:
            nearest = max(1, round(self.batch_size / self.num_envs)) * self.num_envs
            problem = f"batch_size {self.batch_size} is not a multiple of the {self.num_envs} environments"
            raise ConfigError(f"{problem}, which contribute the same number of steps each: use {nearest}")
        if self.rows < self.horizon + self.n_step:
            problem = f"buffer_size {self.buffer_size} holds {self.rows} steps of each environment"
            least = self.num_envs * (self.horizon + self.n_step)
            raise ConfigError(f"{problem}, fewer than horizon and n_step together: use {least} or more")

    def axes(self, env: Environment) -> tuple[Axis, ...]:
        """With fewer environments there is less of everything that they contribute equally to."""

        def resized(count: int) -> tuple[Any, Environment]:
            batch_size = self.batch_size // self.num_envs * count
            return dataclasses.replace(self, num_envs=count, batch_size=batch_size, buffer_size=self.rows * count), env

        return Axis("envs", "environments", self.num_envs, resized), *super().axes(env)[1:]

    @property
    def rebuildable(self) -> tuple[str, ...]:
        return ("replay",)

    @property
    def remark(self) -> str:
        if min(self.learning_starts, self.rows * self.num_envs) <= self.total_steps:
            return ""
        return f"nothing is learned: learning_starts is {self.learning_starts:,}, total_steps {self.total_steps:,}"

    @property
    def rows(self) -> int:
        """Steps that the replay holds of each environment."""
        return self.buffer_size // self.num_envs

    @property
    def span(self) -> int:
        """Consecutive steps that are drawn together."""
        return self.n_step

    @property
    def updates_per_iteration(self) -> int:
        return self.updates

    def empty_step(self, env: Environment, world: World) -> Transition:
        """A step like those that the replay stores."""
        space = env.action_space
        kind = (space.shape, space.dtype) if isinstance(space, Box) else ((), "int32")
        rows = (self.num_envs,) if env.team_size is None else (self.num_envs, env.num_agents)
        action, flag = jnp.zeros((*rows, *kind[0]), kind[1]), jnp.zeros(self.num_envs, bool)
        observation, alive = world.observation, world.alive
        return Transition(observation, action, jnp.zeros(rows), flag, flag, observation, alive, alive)

    def stored_stack(self, env: Environment) -> int:
        """How many frames an observation is, if the replay stores each of them once and stacks them when it samples.

        A picture is one frame. 0 is for observations that are stored whole, each with the one that follows it: those
        are small, or have parts.
        """
        space = env.observation_space
        if env.team_size is not None or not isinstance(space, Box):
            return 0
        if env.stacks_frames:
            return space.shape[0]
        return 1 if space.dtype == "uint8" and len(space.shape) > 1 else 0

    def for_replay(self, env: Environment, step: Transition) -> Transition:
        """A step as it is inserted: what crosses to the replay are single frames, not stacks of them."""
        stack = self.stored_stack(env)
        return single_frames(step, stack) if stack else step

    @stage
    def insert(self, replay: Replay, trajectory: Transition) -> Replay:
        """Add an iteration's steps to the replay, in place of the oldest."""
        return insert_steps(replay, trajectory, self.span)

    @stage
    def sample(self, replay: Replay, keys: jax.Array, importance: jax.Array) -> Any:
        """Draw the steps of all updates of an iteration; updates are the leading axis."""
        per_env = self.updates * self.batch_size // self.num_envs
        drawn = sample_steps(replay, keys, per_env, self.gamma, self.n_step, importance)
        # In turns, because draws by priority are in the order of the rows: every update gets steps of all ages.
        return jax.tree.map(lambda x: x.reshape(-1, self.updates, *x.shape[1:]).swapaxes(0, 1), drawn)

    @stage
    def prioritize(self, replay: Replay, rows: jax.Array, error: jax.Array) -> Replay:
        """Replace the priorities of the steps of all updates, by how wrong each update was about them."""
        rows, error = (x.reshape(-1, x.shape[-1]) for x in (rows, error))
        priority = (jnp.abs(error) + 1e-6) ** self.priority_exponent
        priority = jnp.where(replay.filled >= self.span, priority, 0.0)  # until then rows are drawn that are not there
        return replay._replace(priorities=set_rows(replay.priorities, rows, priority))
