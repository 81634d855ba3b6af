"""Gradient-free search: evolution strategies, and random search that keeps the best candidate."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from fragmenta import Algorithm, Environment, stage
from loops.networks import init_mlp, mlp


class Generation(NamedTuple):
    mean: Any
    key: jax.Array
    number: jax.Array


@dataclasses.dataclass(frozen=True)
class EvolutionStrategies(Algorithm):
    """Every environment runs its own perturbed policy from a fresh start; the update is by fitness rank."""

    num_envs: int = 8
    horizon: int = 8
    sigma: float = 0.1
    rate: float = 0.02

    def params(self, state: Generation) -> Any:
        return state.mean

    def init(self, env: Environment, key: jax.Array) -> Generation:
        key, network_key = jax.random.split(key)
        return Generation(init_mlp(network_key, env.observation_space.shape[0], 8, 1), key, jnp.zeros((), jnp.int32))

    @stage
    def perturb(self, mean: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        flat, unravel = ravel_pytree(mean)
        half = jax.random.normal(key, (self.num_envs // 2, flat.shape[0]))
        noise = jnp.concatenate([half, -half])  # antithetic pairs
        return jax.vmap(unravel)(flat + self.sigma * noise), noise

    @stage
    def act(self, population: Any, observation: jax.Array) -> jax.Array:
        return 2.0 * jnp.tanh(jax.vmap(mlp)(population, observation))

    @stage
    def evolve(self, mean: Any, noise: jax.Array, fitness: jax.Array) -> Any:
        flat, unravel = ravel_pytree(mean)
        ranks = jnp.argsort(jnp.argsort(fitness))
        weights = ranks / (fitness.shape[0] - 1) - 0.5
        gradient = weights @ noise / (fitness.shape[0] * self.sigma)
        return unravel(flat + self.rate * gradient - 0.001 * flat)

    def iterate(self, env: Environment, state: Generation) -> Any:
        key, reset_key, noise_key = jax.random.split(state.key, 3)
        world = env.reset(jax.random.split(reset_key, self.num_envs))
        population, noise = self.perturb(state.mean, noise_key)

        def tick(carry: Any, _: None) -> Any:
            world, fitness = carry
            world, transition = env.step(world, self.act(population, world.observation))
            return (world, fitness + transition.reward), None

        (_, fitness), _ = jax.lax.scan(tick, (world, jnp.zeros(self.num_envs)), None, self.horizon)
        mean = self.evolve(state.mean, noise, fitness)
        metrics = {"best": fitness.max(), "mean": fitness.mean(), "best_index": jnp.argmax(fitness)}
        return Generation(mean, key, state.number + 1), metrics


@dataclasses.dataclass(frozen=True)
class RandomSearch(Algorithm):
    """Only `act` and `step`: a candidate near the best one so far replaces it if its return is higher.

    Its key is a legacy uint32 key, as in much existing code.
    """

    num_envs: int = 8
    horizon: int = 6

    def params(self, state: dict[str, Any]) -> Any:
        return state["best"]

    def init(self, env: Environment, key: jax.Array) -> dict[str, Any]:
        return {
            "best": jnp.zeros((env.observation_space.shape[0], 1)),
            "best_return": jnp.float32(-jnp.inf),
            "world": env.reset(jax.random.split(key, self.num_envs)),
            "rng": jax.random.PRNGKey(7),
        }

    @stage
    def act(self, weights: jax.Array, observation: jax.Array) -> jax.Array:
        return jnp.clip(observation @ weights, -2.0, 2.0)

    def iterate(self, env: Environment, state: dict[str, Any]) -> Any:
        rng, noise_rng, reset_rng = jax.random.split(state["rng"], 3)
        candidate = state["best"] + 0.5 * jax.random.normal(noise_rng, state["best"].shape)
        world = env.reset(jax.random.split(jax.random.wrap_key_data(reset_rng), self.num_envs))
        total = 0.0
        for _ in range(self.horizon):
            world, transition = env.step(world, self.act(candidate, world.observation))
            total = total + transition.reward.mean()
        better = total > state["best_return"]
        best = jnp.where(better, candidate, state["best"])
        best_return = jnp.maximum(total, state["best_return"])
        metrics = {"return": total, "best_return": best_return, "better": better}
        return {"best": best, "best_return": best_return, "world": world, "rng": rng}, metrics
