"""Shared by off-policy algorithms: acting, replay as stages, several updates per iteration."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fragmenta.algorithms.limits import COUNT, Limit
from fragmenta.algorithms.replaying import Replaying
from fragmenta.envs import Environment, Transition, World
from fragmenta.rl import fold_each, keys_by_index, split_each
from fragmenta.rl.replay import Replay, empty_replay, end_episodes
from fragmenta.stage import stage


class TargetLearner(NamedTuple):
    """Networks by name, with a slower copy of those that targets are computed with."""

    params: Any
    target: Any
    optimizer: Any
    updates: jax.Array
    """How many there were."""
    key: jax.Array
    """For noise that all steps of an update share."""


class OffPolicyState(NamedTuple):
    """The state that one iteration passes to the next."""

    world: World
    learner: TargetLearner
    replay: Replay
    keys: jax.Array
    iteration: jax.Array
    """How many iterations there were before."""
    env_index: jax.Array
    """The index of each environment, so that a part of them knows which it is."""
    envs: jax.Array
    """How many environments there are in total."""
    memory: Any = ()
    """Memory of the episode, per environment, if the algorithm has one."""
    moments: Any = ()
    """Running statistics of observations, if they are normalised."""


@dataclasses.dataclass(frozen=True)
class OffPolicy(Replaying):
    """Learns from a replay of earlier steps; a subclass writes `init_params`, `act` and `gradient`."""

    allows_lag: ClassVar[bool] = True  # it learns from the actions of any earlier policy
    targets: ClassVar[tuple[str, ...]] = ()
    """The networks that have a slower copy, by name; all if there are none here."""

    limits: ClassVar[dict[str, Limit]] = {
        "tau": Limit(0, 1, above=True),
        "target_every": COUNT,
    }

    tau: float = 1.0
    """How far a target network moves towards its network; 1 is all the way."""
    target_every: int = 1
    """Updates between two moves of the target networks."""

    def init(self, env: Environment, key: jax.Array) -> OffPolicyState:
        world_key, train_key, params_key = jax.random.split(key, 3)
        world = env.reset(keys_by_index(world_key, self.num_envs))
        params = self.init_params(env, params_key, world.observation)
        optimizer = {name: self.over_copies(name, self.transformation().init)(part) for name, part in params.items()}
        noise_key = jax.random.fold_in(params_key, 2)
        learner = TargetLearner(params, self._slow(params), optimizer, jnp.zeros((), jnp.int32), noise_key)
        stack = self.stored_stack(env)
        replay = empty_replay(self.empty_step(env, world), self.rows, self.prioritized, stack)
        keys, count = keys_by_index(train_key, self.num_envs), jnp.asarray(self.num_envs, jnp.int32)
        return OffPolicyState(world, learner, replay, keys, jnp.zeros((), jnp.int32), jnp.arange(self.num_envs), count)

    def init_params(self, env: Environment, key: jax.Array, observation: Any) -> dict[str, Any]:
        """The networks by name, before the first iteration."""
        raise NotImplementedError

    def act(self, env: Environment, params: Any, observation: Any, keys: jax.Array, explore: Any, /) -> Any:
        """An action for every observation, with what `exploring` returns; a stage."""
        raise NotImplementedError

    def exploring(self, state: OffPolicyState, steps: jax.Array) -> Any:
        """What `act` explores by, after `steps` of the run: by these steps, unless a subclass says otherwise."""
        return steps

    def gradient(self, env: Environment, learner: TargetLearner, batch: Any, keys: jax.Array) -> tuple[Any, Any]:
        """The gradients of the losses on a batch, the error of every step, and the losses by name; a stage."""
        raise NotImplementedError

    def with_new_episodes(self, saved: OffPolicyState, fresh: OffPolicyState) -> OffPolicyState:
        ended = end_episodes(saved.replay)
        return super().with_new_episodes(saved, fresh)._replace(replay=ended, memory=fresh.memory)

    def iterate(self, env: Environment, state: OffPolicyState) -> tuple[OffPolicyState, dict[str, jax.Array]]:
        keys, act_keys, sample_keys, learn_keys = split_each(state.keys, 4)
        explore, start = self.exploring(state, self.steps_before(state)), (state.world, state.memory)
        (world, memory), trajectory = self.collect(env, self.params(state), start, act_keys, explore)
        replay = self.insert(state.replay, trajectory)
        batches = self.sample(replay, sample_keys, self.importance + (1.0 - self.importance) * self.share_done(state))
        # Not by the steps of the run: a resumed one may have an empty replay, or one that is empty in part.
        is_drawn = state.replay.filled * state.envs >= jnp.minimum(self.learning_starts, self.rows * state.envs)
        is_drawn &= replay.filled >= self.span
        is_ready = jnp.all(is_drawn)
        moments, batches = self.to_learn(state, batches, is_ready)
        learner, error, losses = self.learn(env, state.learner, batches, learn_keys, is_ready)
        if self.prioritized:
            replay = self.prioritize(replay, batches.rows, error)
        replay = replay._replace(draws=replay.draws + is_drawn)
        ratio = jnp.mean(replay.draws / replay.inserted) * (self.updates * self.batch_size / self.num_envs)
        state = state._replace(world=world, learner=learner, replay=replay, keys=keys, memory=memory, moments=moments)
        return state._replace(iteration=state.iteration + 1), losses | {"replay_ratio": ratio}

    def collect(
        self, env: Environment, params: Any, start: tuple[World, Any], keys: jax.Array, explore: Any
    ) -> tuple[tuple[World, Any], Transition]:
        """Act for `horizon` steps, with what `exploring` returns: world and memory afterwards, and the trajectory."""
        params = self.acting(params)

        def tick(carry: tuple[World, Any], time: jax.Array) -> tuple[tuple[World, Any], Transition]:
            return self.tick(env, params, carry, fold_each(keys, time), explore)

        return jax.lax.scan(tick, start, jnp.arange(self.horizon))

    def tick(
        self, env: Environment, params: Any, start: tuple[World, Any], keys: jax.Array, explore: Any
    ) -> tuple[tuple[World, Any], Transition]:
        """Act for one step: world and memory afterwards, and what the replay stores of it."""
        world, memory = start
        world, transition = self.stepped(env, world, self.act(env, params, self.view(world), keys, explore))
        return (world, memory), self.for_replay(env, transition)

    def view(self, world: World) -> Any:
        """What `act` sees of the world."""
        return world.observation

    def to_learn(self, state: OffPolicyState, batches: Any, is_ready: jax.Array) -> tuple[Any, Any]:
        """The next statistics of observations, and the batches as networks see them."""
        return state.moments, batches

    @stage
    def learn(
        self, env: Environment, learner: TargetLearner, batches: Any, keys: jax.Array, is_ready: jax.Array
    ) -> tuple[TargetLearner, jax.Array, dict[str, jax.Array]]:
        """An update on each batch, unless it is too early: the learner, the error of every step, and the losses."""
        # Not in `sample`, where the largest weight would have to be agreed on among all parts of the replay.
        largest = jnp.maximum(jnp.max(batches.weight), 1e-12)  # all are 0 if what follows each of the steps is gone
        batches = batches._replace(weight=batches.weight / largest)

        def update(learner: TargetLearner, x: tuple[Any, jax.Array]) -> tuple[TargetLearner, Any]:
            batch, index = x
            gradients, aux = self.gradient(env, learner, batch, fold_each(keys, index))
            return self.apply(learner, gradients, is_ready), aux

        learner, (error, losses) = jax.lax.scan(update, learner, (batches, jnp.arange(self.updates)))
        return learner, error, jax.tree.map(jnp.mean, losses)

    @stage
    def apply(self, learner: TargetLearner, gradients: Any, is_ready: jax.Array) -> TargetLearner:
        """One optimizer step for every network that is due, unless it is too early; then the target networks move."""
        params, optimizer, updates = dict(learner.params), dict(learner.optimizer), learner.updates + 1
        for name, part in gradients.items():
            update = self.over_copies(name, self.transformation().update)
            changes, changed = update(part, optimizer[name], params[name])
            is_due = is_ready & (updates % self.period(name) == 0)
            changed = optax.apply_updates(params[name], changes), changed
            params[name], optimizer[name] = _where(is_due, changed, (params[name], optimizer[name]))
        moved = optax.incremental_update(self._slow(params), learner.target, self.tau)
        target = _where(is_ready & (updates % self.target_every == 0), moved, learner.target)
        return TargetLearner(params, target, optimizer, learner.updates + is_ready, learner.key)

    def over_copies(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of the parameters of a network as one of all its copies, if every agent has one."""
        return function

    def period(self, name: str) -> int:
        """Updates between two steps of a network's optimizer."""
        return 1

    def share_done(self, state: OffPolicyState) -> jax.Array:
        return jnp.minimum(self.steps_before(state) / float(self.total_steps), 1.0)

    def steps_before(self, state: OffPolicyState) -> jax.Array:
        """The steps of the run before a state, as a float: long runs have more than an integer counts to."""
        return state.iteration.astype(jnp.float32) * (state.envs * self.horizon)  # `num_envs` may be that of a part

    def _slow(self, params: dict[str, Any]) -> dict[str, Any]:
        return {name: part for name, part in params.items() if name in (self.targets or params)}

    def with_params(self, state: OffPolicyState, params: Any) -> OffPolicyState:
        return state._replace(learner=state.learner._replace(params=params, target=self._slow(params)))


def _where(condition: jax.Array, new: Any, old: Any) -> Any:
    return jax.tree.map(lambda new, old: jnp.where(condition, new, old), new, old)
