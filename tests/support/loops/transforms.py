"""An actor-critic with most JAX transforms: nnx modules, remat, custom gradients, associative scans, maps."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from fragmenta import Algorithm, Environment, stage
from loops.networks import log_prob_of


class Critic(nnx.Module):
    """A convolution over the last axis of the observation, then a dense layer."""

    def __init__(self, sees: int, rngs: nnx.Rngs) -> None:
        self.convolution = nnx.Conv(1, 4, kernel_size=(3,), rngs=rngs)
        self.value = nnx.Linear(4 * sees, 1, rngs=rngs)

    def __call__(self, observation: jax.Array) -> jax.Array:
        hidden = nnx.tanh(self.convolution(observation[..., None]))
        return self.value(hidden.reshape(*observation.shape[:-1], -1))[..., 0]


@jax.custom_vjp
def gently(x: jax.Array) -> jax.Array:
    """The identity, with half the gradient."""
    return x


gently.defvjp(lambda x: (x, None), lambda _, cotangent: (0.5 * cotangent,))


class State(NamedTuple):
    critic: Any
    actor: jax.Array
    optimizer: Any
    world: Any
    key: jax.Array


@dataclasses.dataclass(frozen=True)
class Transforms(Algorithm):
    num_envs: int = 8
    horizon: int = 6

    def optimizer(self) -> optax.GradientTransformation:
        return optax.multi_transform({"slow": optax.sgd(1e-3), "fast": optax.adam(1e-3, eps=1e-5)}, ("slow", "fast"))

    def params(self, state: State) -> Any:
        return state.critic, state.actor

    def init(self, env: Environment, key: jax.Array) -> State:
        key, critic_key, actor_key, world_key = jax.random.split(key, 4)
        sees = env.observation_space.shape[0]
        critic = nnx.state(Critic(sees, nnx.Rngs(critic_key)))
        actor = 0.1 * jax.random.normal(actor_key, (sees, env.action_space.n))
        world = env.reset(jax.random.split(world_key, self.num_envs))
        return State(critic, actor, self.optimizer().init((critic, actor)), world, key)

    def value(self, critic: Any, observation: jax.Array) -> jax.Array:
        definition = nnx.graphdef(nnx.eval_shape(lambda: Critic(observation.shape[-1], nnx.Rngs(0))))
        return nnx.merge(definition, critic)(observation)

    @stage
    def act(self, actor: jax.Array, observation: jax.Array, key: jax.Array) -> jax.Array:
        # Hand-written Gumbel noise, mapped over environments in batches of two.
        noise = jax.random.gumbel(key, (observation.shape[0], actor.shape[1]))
        return jax.lax.map(lambda row: jnp.argmax(row[0] @ actor + row[1]), (observation, noise), batch_size=2)

    @stage
    def gradient(self, critic: Any, actor: jax.Array, steps: Any, last: jax.Array) -> Any:
        observation, action, reward, ended = steps

        def loss(params: Any) -> Any:
            critic, actor = params
            value = jax.checkpoint(self.value)(critic, observation)
            following = jnp.concatenate([value[1:], self.value(critic, last)[None]])
            decay = 0.95 * (1.0 - ended)
            delta = reward + jax.lax.stop_gradient(following) * decay - value

            def combine(left: Any, right: Any) -> Any:
                return left[0] * right[0], right[1] + right[0] * left[1]

            _, advantage = jax.lax.associative_scan(combine, (0.9 * decay, delta), reverse=True)
            centred = jax.vmap(lambda x: x - jax.lax.pmean(x, "rows"), axis_name="rows", in_axes=1, out_axes=1)(
                advantage
            )
            logits = gently(jnp.einsum("tno,oa->tna", observation, actor))
            policy_loss = -jnp.mean(log_prob_of(logits, action) * jax.lax.stop_gradient(centred))
            return policy_loss + 0.01 * jnp.mean(delta**2), policy_loss

        return jax.grad(loss, has_aux=True)((critic, actor))

    @stage
    def apply(self, critic: Any, actor: jax.Array, optimizer: Any, gradients: Any) -> Any:
        updates, optimizer = self.optimizer().update(gradients, optimizer, (critic, actor))
        critic, actor = optax.apply_updates((critic, actor), updates)
        return critic, actor, optimizer

    @stage
    def learn(self, state: State, steps: Any, last: jax.Array) -> Any:
        gradients, policy_loss = self.gradient(state.critic, state.actor, steps, last)
        return self.apply(state.critic, state.actor, state.optimizer, gradients), policy_loss

    def iterate(self, env: Environment, state: State) -> Any:
        key, act_key = jax.random.split(state.key)

        def tick(world: Any, key: jax.Array) -> Any:
            action = self.act(state.actor, world.observation, key)
            next_world, transition = env.step(world, action)
            return next_world, (world.observation, action, transition.reward, transition.terminated)

        world, steps = jax.lax.scan(tick, state.world, jax.random.split(act_key, self.horizon), unroll=2)
        learned, policy_loss = self.learn(state, steps, world.observation)
        _, running_best = jax.lax.scan(
            lambda best, x: (jnp.maximum(best, x), best), -jnp.ones(()), world.observation[:, 0]
        )
        metrics = {"policy_loss": policy_loss, "gram": jnp.linalg.norm(world.observation @ world.observation.T)}
        metrics["running_best"] = running_best[-1]
        return State(*learned, world, key), metrics
