"""Recurrent replay (Kapturowski et al., 2019): Q-learning from sequences, with a memory of the episode."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fragmenta.algorithms.dqn import DQN
from fragmenta.algorithms.encoding import Encoded
from fragmenta.algorithms.limits import COUNT, FRACTION, Limit
from fragmenta.algorithms.off_policy import OffPolicyState, TargetLearner
from fragmenta.algorithms.remembering import RecurrentInput
from fragmenta.envs import Environment, Transition, World
from fragmenta.errors import ConfigError
from fragmenta.rl.exploration import epsilon_greedy
from fragmenta.rl.replay import Replay, insert_steps
from fragmenta.rl.sequences import Sequences, sample_sequences
from fragmenta.rl.value_targets import outputs_of_action, rescaled, returns_within, unscaled
from fragmenta.stage import stage


@dataclasses.dataclass(frozen=True)
class R2D2(DQN):
    """Values of actions from replayed sequences: memories start as they were stored, and warm up before learning."""

    limits: ClassVar[dict[str, Limit]] = {"burn_in": Limit(0, whole=True), "length": COUNT, "peak_share": FRACTION}
    used_if: ClassVar[dict[str, dict[str, Any]]] = {"peak_share": {"prioritized": True}}
    without_memory: ClassVar[str] = ""

    cell: Any = "gru"
    batch_size: int = 32
    """Sequences per update, in total; every environment contributes the same number of them."""
    learning_rate: float = 1e-3
    hidden: tuple[int, ...] = (64,)
    dueling: bool = True
    prioritized: bool = True
    burn_in: int = 4
    """Steps at the start of a sequence that only warm up the memory."""
    length: int = 16
    """Steps of a sequence that are learned from."""
    rescale: bool = True
    """Learn values on a scale that compresses large ones."""
    peak_share: float = 0.9
    """How far the priority of a sequence is its largest error; the rest is its mean error."""

    def validate(self, env: Environment) -> None:
        super().validate(env)
        if not self.remembers:
            raise ConfigError("cell is 'none', but R2D2 replays memories of the episode: choose one, or use dqn")
        for name, plain in (("distribution", "none"), ("noisy", False), ("normalize_observations", False)):
            if getattr(self, name) != plain:
                raise ConfigError(f"{name} is '{getattr(self, name)}', which R2D2 does not combine with: leave it out")
        if self.rows < self.horizon + self.span:
            problem = f"buffer_size {self.buffer_size} holds {self.rows} steps of each environment"
            least = self.num_envs * (self.horizon + self.span)
            raise ConfigError(f"{problem}, fewer than horizon and a sequence of {self.span}: use {least} or more")

    @property
    def span(self) -> int:
        return self.burn_in + self.length

    def init(self, env: Environment, key: jax.Array) -> OffPolicyState:
        state, memory = super().init(env, key), self.fresh_memory(self.num_envs)
        replay = state.replay._replace(memory=jnp.zeros((self.rows, *memory.shape), memory.dtype))
        return state._replace(memory=memory, replay=replay)

    def tick(
        self, env: Environment, params: Any, start: tuple[World, Any], keys: jax.Array, explore: Any
    ) -> tuple[tuple[World, Any], Transition]:
        world, memory = start
        remembered = RecurrentInput(world.observation, memory)
        action, memory = self.act(env, params, remembered, keys, explore)
        world, transition = self.stepped(env, world, action)
        memory = self.kept(transition.terminated | transition.truncated, memory)
        step = self.for_replay(env, transition)
        return (world, memory), step._replace(observation=remembered._replace(observation=step.observation))

    @stage
    def act(self, env: Environment, params: Any, observation: RecurrentInput, keys: jax.Array, explore: Any) -> Any:
        """The best action of each environment or a random one, and the next memory."""
        memory, encoded = self.remember(env, params, observation)
        values = self.values_of(env, params, encoded)
        return epsilon_greedy(keys, values, explore, encoded.legal), memory

    def decide(
        self, env: Environment, params: Any, observation: Any, alive: Any, memory: Any, keys: jax.Array | None
    ) -> tuple[Any, Any]:
        params = self.acting(params)
        memory, encoded = self.remember(env, params, RecurrentInput(observation, memory))
        return jnp.argmax(self.values_of(env, params, encoded), axis=-1).astype(jnp.int32), memory

    @stage
    def insert(self, replay: Replay, trajectory: Transition) -> Replay:
        """Add an iteration's steps to the replay, in place of the oldest, with the memory before each."""
        remembered: RecurrentInput = trajectory.observation
        steps = trajectory._replace(observation=remembered.observation)
        return insert_steps(replay, steps, self.span, remembered.memory)

    @stage
    def sample(self, replay: Replay, keys: jax.Array, importance: jax.Array) -> Sequences:
        """Draw the sequences of all updates of an iteration; updates are the leading axis."""
        per_env = self.updates * self.batch_size // self.num_envs
        drawn = sample_sequences(replay, keys, per_env, self.span, importance)

        def by_update(x: jax.Array) -> jax.Array:
            return x.reshape(-1, self.updates, *x.shape[1:]).swapaxes(0, 1)

        steps = jax.tree.map(lambda x: jax.vmap(by_update, out_axes=1)(x), drawn.steps)
        return Sequences(steps, *map(by_update, (drawn.weight, drawn.rows, drawn.memory)))

    @stage
    def gradient(self, env: Environment, learner: TargetLearner, batch: Any, keys: jax.Array) -> tuple[Any, Any]:
        """The gradient of the loss on a batch of sequences, the error of each of them, and the losses."""
        steps = jax.tree.map(lambda x: x[self.burn_in :], batch.steps)
        ended = batch.steps.terminated | batch.steps.truncated
        sequence = RecurrentInput(batch.steps.observation, batch.memory, ended)
        _, target_next = self._unrolled(env, learner.target, sequence, batch.steps.next_observation)

        def loss(params: Any) -> tuple[jax.Array, tuple[jax.Array, dict[str, jax.Array]]]:
            encoded, after = self._unrolled(env, params, sequence, batch.steps.next_observation)
            chooser = (params, after) if self.double else (learner.target, target_next)
            best = jnp.argmax(self.values_of(env, *chooser), axis=-1)
            following = self._taken(env, learner.target, target_next, best)
            following = unscaled(following) if self.rescale else following
            goal = returns_within(steps, following, self.gamma, self.n_step)
            goal = jax.lax.stop_gradient(rescaled(goal) if self.rescale else goal)
            value = self._taken(env, params, encoded, steps.action)
            error = value - goal
            total = 0.5 * jnp.mean(batch.weight * jnp.mean(error**2, axis=0))
            size = jnp.abs(error)
            priority = self.peak_share * jnp.max(size, axis=0) + (1 - self.peak_share) * jnp.mean(size, axis=0)
            return total, (priority, {"loss": total, "value": jnp.mean(value)})

        return jax.grad(loss, has_aux=True)(learner.params)

    def _unrolled(
        self, env: Environment, params: Any, sequence: RecurrentInput, next_observation: Any
    ) -> tuple[Encoded, Encoded]:
        """Features at every step after the burn-in, and at the observation that follows each of them; the memory is
        that before the first step."""
        steps, start = sequence._replace(memory=()), sequence.memory
        first, rest = (jax.tree.map(lambda x, part=part: x[part], steps) for part in self._parts)
        if self.burn_in:
            start = jax.lax.stop_gradient(self.remember_on(env, params, first, start)[0])
        _, encoded, memories = self.remember_on(env, params, rest, start)
        following = jax.tree.map(lambda x: x[self.burn_in :], next_observation)
        return encoded, self.encode(env, params, RecurrentInput(following, memories))

    @property
    def _parts(self) -> tuple[slice, slice]:
        return slice(0, self.burn_in), slice(self.burn_in, None)

    def _taken(self, env: Environment, params: Any, encoded: Encoded, action: jax.Array) -> jax.Array:
        return outputs_of_action(self.outputs(env, params, encoded), action)[..., 0]
