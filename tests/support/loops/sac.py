"""Soft actor-critic: twin critics, a squashed Gaussian policy, a learned temperature, slowly updated targets."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fragmenta import Algorithm, Environment, stage
from loops.networks import init_mlp, mlp


class Replay(NamedTuple):
    data: dict[str, jax.Array]
    position: jax.Array
    full: jax.Array


class Networks(NamedTuple):
    actor: Any
    critics: Any
    """Both critics, stacked."""
    log_alpha: jax.Array


class State(NamedTuple):
    world: Any
    replay: Replay
    networks: Networks
    targets: Any
    optimizer: Any
    key: jax.Array


@dataclasses.dataclass(frozen=True)
class SAC(Algorithm):
    num_envs: int = 8
    ticks: int = 5
    capacity: int = 64
    batch: int = 16
    gamma: float = 0.95
    tau: float = 0.05

    def optimizer(self) -> optax.GradientTransformation:
        return optax.adam(3e-4, eps=1e-5)

    def init(self, env: Environment, key: jax.Array) -> State:
        key, actor_key, critic_key, world_key = jax.random.split(key, 4)
        (sees,), (acts,) = env.observation_space.shape, env.action_space.shape
        critics = jax.vmap(lambda key: init_mlp(key, sees + acts, 16, 1))(jax.random.split(critic_key))
        networks = Networks(init_mlp(actor_key, sees, 16, 2 * acts), critics, jnp.zeros(()))
        sizes = {"observation": (sees,), "action": (acts,), "reward": (), "next": (sees,), "terminated": ()}
        data = {name: jnp.zeros((self.capacity, *shape)) for name, shape in sizes.items()}
        world = env.reset(jax.random.split(world_key, self.num_envs))
        replay = Replay(data, jnp.int32(0), jnp.bool_(False))
        return State(world, replay, networks, critics, self.optimizer().init(networks), key)

    def params(self, state: State) -> Any:
        return state.networks

    def draw(self, actor: Any, observation: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Samples actions in (-1, 1), and returns them with their log-probabilities."""
        mean, log_std = jnp.split(mlp(actor, observation), 2, axis=-1)
        log_std = jnp.clip(log_std, -5.0, 2.0)
        noise = jax.random.normal(key, mean.shape)
        before = mean + jnp.exp(log_std) * noise
        log_prob = -0.5 * noise**2 - log_std - 0.5 * jnp.log(2 * jnp.pi)
        log_prob -= 2 * (jnp.log(2.0) - before - jax.nn.softplus(-2 * before))
        return jnp.tanh(before), log_prob.sum(-1)

    def values(self, critics: Any, observation: jax.Array, action: jax.Array) -> jax.Array:
        both = jnp.concatenate([observation, action], axis=-1)
        return jax.vmap(mlp, in_axes=(0, None))(critics, both)[..., 0]

    @stage
    def act(self, actor: Any, observation: jax.Array, key: jax.Array) -> jax.Array:
        return self.draw(actor, observation, key)[0]

    @stage
    def insert(self, replay: Replay, new: dict[str, jax.Array]) -> Replay:
        n = new["reward"].shape[0]
        rows = (replay.position + jnp.arange(n)) % self.capacity
        data = {name: replay.data[name].at[rows].set(x) for name, x in new.items()}
        return Replay(data, (replay.position + n) % self.capacity, replay.full | (replay.position + n >= self.capacity))

    @stage
    def sample(self, replay: Replay, key: jax.Array) -> dict[str, jax.Array]:
        filled = jnp.where(replay.full, self.capacity, replay.position)
        rows = jax.random.randint(key, (self.batch,), 0, filled)
        return jax.tree.map(lambda x: x[rows], replay.data)

    @stage
    def gradient(self, networks: Networks, targets: Any, batch: dict[str, jax.Array], key: jax.Array) -> Any:
        next_key, now_key = jax.random.split(key)
        alpha = jnp.exp(networks.log_alpha)
        action, log_prob = self.draw(networks.actor, batch["next"], next_key)
        next_value = jnp.min(self.values(targets, batch["next"], action), axis=0) - alpha * log_prob
        target_q = jax.lax.stop_gradient(batch["reward"] + self.gamma * (1 - batch["terminated"]) * next_value)

        def loss(networks: Networks) -> tuple[jax.Array, dict[str, jax.Array]]:
            q = self.values(networks.critics, batch["observation"], batch["action"])
            critic_loss = jnp.mean((q - target_q) ** 2)
            action, log_prob = self.draw(networks.actor, batch["observation"], now_key)
            fixed = jax.lax.stop_gradient(networks.critics)
            worth = jnp.min(self.values(fixed, batch["observation"], action), axis=0)
            actor_loss = jnp.mean(jax.lax.stop_gradient(alpha) * log_prob - worth)
            wished = -float(action.shape[-1])
            alpha_loss = -jnp.exp(networks.log_alpha) * jax.lax.stop_gradient(log_prob + wished).mean()
            losses = {"critic_loss": critic_loss, "actor_loss": actor_loss, "alpha": alpha}
            return critic_loss + actor_loss + alpha_loss, losses

        return jax.grad(loss, has_aux=True)(networks)

    @stage
    def apply(self, networks: Networks, targets: Any, optimizer: Any, gradients: Any) -> Any:
        updates, optimizer = self.optimizer().update(gradients, optimizer)
        networks = optax.apply_updates(networks, updates)
        return networks, optax.incremental_update(networks.critics, targets, self.tau), optimizer

    @stage
    def learn(self, networks: Networks, targets: Any, optimizer: Any, batch: Any, key: jax.Array) -> Any:
        gradients, losses = self.gradient(networks, targets, batch, key)
        return self.apply(networks, targets, optimizer, gradients), losses

    def iterate(self, env: Environment, state: State) -> Any:
        high = env.action_space.high

        def tick(state: State, _: None) -> Any:
            key, act_key, sample_key, learn_key = jax.random.split(state.key, 4)
            action = self.act(state.networks.actor, state.world.observation, act_key)
            world, transition = env.step(state.world, action * high)
            new = {
                "observation": transition.observation,
                "action": action,
                "reward": transition.reward * 0.1,
                "next": transition.next_observation,
                "terminated": transition.terminated.astype(jnp.float32),
            }
            replay = self.insert(state.replay, new)
            batch = self.sample(replay, sample_key)
            learned, losses = self.learn(state.networks, state.targets, state.optimizer, batch, learn_key)
            return State(world, replay, *learned, key), {**losses, "reward": transition.reward.mean()}

        state, metrics = jax.lax.scan(tick, state, length=self.ticks)
        return state, jax.tree.map(jnp.mean, metrics)
