"""N-step A2C with stacked observations, which reports all kinds of statistics over environments."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fragmenta import Algorithm, Environment, stage
from loops.networks import init_mlp, mlp


class Moments(NamedTuple):
    mean: jax.Array
    var: jax.Array
    count: jax.Array


class Step(NamedTuple):
    stacked: jax.Array
    action: jax.Array
    reward: jax.Array
    ended: jax.Array


class Learner(NamedTuple):
    params: dict[str, Any]
    optimizer: Any


class State(NamedTuple):
    world: Any
    frames: jax.Array
    """The last few observations, (frames, environments, ...), newest last."""
    moments: Moments
    learner: Learner
    key: jax.Array


def merged(moments: Moments, rows: jax.Array) -> Moments:
    """The moments updated with one more batch (Chan et al.)."""
    mean, var, count = rows.mean(axis=0), rows.var(axis=0), rows.shape[0]
    total, delta = moments.count + count, mean - moments.mean
    squares = moments.var * moments.count + var * count + delta**2 * moments.count * count / total
    return Moments(moments.mean + delta * count / total, squares / total, total)


@dataclasses.dataclass(frozen=True)
class StatisticsA2C(Algorithm):
    num_envs: int = 8
    horizon: int = 5
    frames: int = 3
    gamma: float = 0.95

    def optimizer(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(0.5), optax.rmsprop(3e-4, decay=0.99, eps=1e-3))

    def init(self, env: Environment, key: jax.Array) -> State:
        key, actor_key, critic_key, world_key = jax.random.split(key, 4)
        sees = env.observation_space.shape[0]
        wide = self.frames * sees
        params = {
            "actor": init_mlp(actor_key, wide, 16, env.action_space.n),
            "critic": init_mlp(critic_key, wide, 16, 1),
        }
        world = env.reset(jax.random.split(world_key, self.num_envs))
        frames = jnp.zeros((self.frames, self.num_envs, sees)).at[-1].set(world.observation)
        moments = Moments(jnp.zeros(sees), jnp.ones(sees), jnp.float32(1.0))
        return State(world, frames, moments, Learner(params, self.optimizer().init(params)), key)

    def stacked(self, frames: jax.Array, moments: Moments) -> jax.Array:
        scaled = (frames - moments.mean) / jnp.sqrt(moments.var + 1e-2)
        return jnp.concatenate(list(scaled), axis=-1)

    @stage
    def act(self, params: Any, stacked: jax.Array, key: jax.Array) -> jax.Array:
        return jax.random.categorical(key, mlp(params["actor"], stacked))

    @stage
    def gradient(self, params: Any, steps: Step, last: jax.Array) -> Any:
        def backwards(after: jax.Array, step: Step) -> Any:
            total = step.reward + self.gamma * after * (1.0 - step.ended)
            return total, total

        _, returns = jax.lax.scan(backwards, mlp(params["critic"], last)[..., 0], steps, reverse=True)

        def loss(params: Any) -> Any:
            log_probs = jax.nn.log_softmax(mlp(params["actor"], steps.stacked))
            value = mlp(params["critic"], steps.stacked)[..., 0]
            chosen = (log_probs * jax.nn.one_hot(steps.action, log_probs.shape[-1])).sum(-1)
            advantage = returns - value
            policy_loss = -(chosen * jax.lax.stop_gradient(advantage)).mean()
            entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
            return policy_loss + 0.5 * (advantage**2).mean() - 0.01 * entropy, (policy_loss, entropy)

        return jax.grad(loss, has_aux=True)(params)

    @stage
    def apply(self, learner: Learner, gradients: Any) -> Learner:
        updates, optimizer = self.optimizer().update(gradients, learner.optimizer)
        return Learner(optax.apply_updates(learner.params, updates), optimizer)

    @stage
    def learn(self, learner: Learner, steps: Step, last: jax.Array) -> Any:
        gradients, losses = self.gradient(learner.params, steps, last)
        return self.apply(learner, gradients), losses

    def iterate(self, env: Environment, state: State) -> Any:
        key, act_key = jax.random.split(state.key)

        def tick(carry: Any, key: jax.Array) -> Any:
            world, frames, moments = carry
            stacked = self.stacked(frames, moments)
            action = self.act(state.learner.params, stacked, key)
            world, transition = env.step(world, action)
            ended = transition.terminated | transition.truncated
            frames = jnp.where(ended[None, :, None], 0.0, jnp.roll(frames, -1, axis=0)).at[-1].set(world.observation)
            return (world, frames, merged(moments, world.observation)), Step(stacked, action, transition.reward, ended)

        start = (state.world, state.frames, state.moments)
        (world, frames, moments), steps = jax.lax.scan(tick, start, jax.random.split(act_key, self.horizon))
        learner, (policy_loss, entropy) = self.learn(state.learner, steps, self.stacked(frames, moments))
        metrics = {"policy_loss": policy_loss, "entropy": entropy, **self.statistics(world, steps)}
        return State(world, frames, moments, learner, key), metrics

    def statistics(self, world: Any, steps: Step) -> dict[str, jax.Array]:
        """Different statistics over environments; positions differ among environments, lengths mostly do not."""
        position, lengths = world.observation[:, 0], world.episode_length
        top, top_index = jax.lax.top_k(position, 3)
        sides = jax.ops.segment_sum(jnp.abs(position), steps.action[-1], num_segments=2)
        counts, _ = jnp.histogram(position, bins=4, range=(-0.21, 0.2))
        return {
            "max": position.max(),
            "min": position.min(),
            "std": position.std(),
            "median": jnp.median(position),
            "quantiles": jnp.quantile(position, jnp.array([0.1, 0.9])),
            "any_ended": steps.ended.any(),
            "all_ended": steps.ended.any(axis=0).all(),
            "top": top,
            "top_index": top_index,
            "sorted": jnp.sort(position),
            "order": jnp.argsort(position),
            "running": jnp.cumsum(position)[-3:],
            "furthest": jnp.argmax(jnp.abs(position)),
            "histogram": counts,
            "by_action": sides,
            "lengths": jnp.bincount(lengths, length=20),
            "product": jnp.prod(1.0 + position),
            "norm": jnp.linalg.norm(position),
            "neighbours": jnp.abs(jnp.diff(position)).mean(),
            "first": position[0],
            "last_one": position[-1],
            "every_other": position[::2].mean(),
            "covariance": jnp.cov(world.observation.T)[0, 1],
        }
