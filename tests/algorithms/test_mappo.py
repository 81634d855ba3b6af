"""MAPPO learns the known values of a team, ignores agents that dropped out, and is independent of how it is split."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import fragmenta
from fragmenta import MAPPO, Environment
from fragmenta.algorithms.actor_critic import State
from fragmenta.algorithms.neural import Learner
from fragmenta.algorithms.team_actors import ActInfo
from fragmenta.envs.probes import ProbeTeam
from fragmenta.evaluation.evaluate import evaluate
from fragmenta.rl.teams import TeamView
from helpers import assert_same, plain
from replicas import on_replicas

PROBE = MAPPO(num_envs=16, horizon=16, epochs=4, minibatches=2, hidden=(32,), gamma=0.9, total_steps=25_600)
# Six steps end in the middle of an episode of four, so that it matters which agents are alive in the next step.
SMALL = MAPPO(num_envs=4, horizon=6, epochs=2, minibatches=2, hidden=(16,), total_steps=2 * 24)
SEPARATE = pytest.param(False, marks=pytest.mark.full, id="separate")
SHARED = pytest.mark.parametrize("shared", [pytest.param(True, id="shared"), SEPARATE])


@pytest.mark.full
@SHARED
def test_learns_the_known_value(shared: bool) -> None:
    algorithm, env = dataclasses.replace(PROBE, shared=shared), ProbeTeam()
    result = fragmenta.train(algorithm, env)
    assert result.summary["return_mean"] > 0.98 * 2.5, "1, 2, 3 and 4 steps, a reward of 1 each"
    assert evaluate(algorithm, env, result.params, 20).mean == 2.5
    signs = jnp.asarray([1.0, -1.0, -1.0, 1.0])

    @jax.jit
    def value_and_chance(params: Any, observation: jax.Array, alive: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The value and the probability of the right action, per agent."""
        encoded = algorithm.encode_each(env, params, TeamView(observation, alive))
        value = algorithm.value(env, params, encoded)
        chosen = algorithm.policy(env, params, encoded)
        return value[0], jnp.exp(chosen.log_prob((signs > 0)[None].astype(int)))[0]

    for time in range(4):
        left = jnp.arange(4) + 1 - time
        alive = left > 0
        observation = jnp.where(alive[:, None], jnp.stack([signs, left / 4], axis=-1), 0.0)[None]
        value, chance = value_and_chance(result.params, observation, alive[None])
        for agent in range(time, 4):
            expected = (1 - 0.9 ** int(left[agent])) / (1 - 0.9)
            assert float(value[agent]) == pytest.approx(expected, abs=0.1), f"agent {agent} at time {time}"
            assert float(chance[agent]) > 0.95


@SHARED
@pytest.mark.full
def test_garbage_from_agents_that_dropped_out_changes_nothing(shared: bool) -> None:
    algorithm = dataclasses.replace(SMALL, shared=shared)
    (state, metrics), (other_state, other_metrics) = (
        plain(algorithm, ProbeTeam(garbage=garbage), 2) for garbage in (1e6, float("nan"))
    )
    assert_same(state.learner, other_state.learner, 0.0)
    assert_same(metrics, other_metrics, 0.0)
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(state.learner.params))


@SHARED
def test_separate_agents_have_their_own_parameters(shared: bool) -> None:
    algorithm, env = dataclasses.replace(SMALL, shared=shared), ProbeTeam()
    whole, part = (jax.eval_shape(lambda e=e: algorithm.init(e, jax.random.key(0))) for e in (env, env.with_agents(2)))
    for a, b in zip(jax.tree.leaves(whole.learner), jax.tree.leaves(part.learner), strict=True):
        assert (a.shape == b.shape) if shared else ((a.shape[0], b.shape[0]) == (4, 2) and a.shape[1:] == b.shape[1:])


@pytest.mark.full
@SHARED
def test_learning_and_acting_split_along_agents_are_the_same(shared: bool) -> None:
    """Two replicas with two agents each learn and act like one with four."""
    algorithm, env = dataclasses.replace(SMALL, shared=shared), ProbeTeam()
    state, trajectory, acted = collect_rollout(algorithm, env)
    world, learner = state.world, state.learner
    learner_dim = None if shared else 0

    def learn_and_act(
        learner: Learner, fields: Any, flags: Any, acted: Any, observation: Any, alive: Any, keys: Any
    ) -> Any:
        steps = trajectory._replace(**fields, **flags)
        learned = algorithm.learn(env, learner, steps, acted, keys)
        return learned, algorithm.act(env, learner.params, TeamView(observation, alive), (), keys)

    per_agent = {name: x for name, x in trajectory._asdict().items() if x.ndim > 2}
    per_team = {name: x for name, x in trajectory._asdict().items() if x.ndim == 2}
    arguments = learner, per_agent, per_team, acted, world.observation, world.alive, state.keys
    actual = on_replicas(learn_and_act, arguments, (learner_dim, 2, None, 2, 1, 1, None), 2)
    assert_same(jax.tree.leaves(jax.jit(learn_and_act)(*arguments)), actual, 1e-4)


def collect_rollout(algorithm: MAPPO, env: Environment) -> tuple[State, fragmenta.Transition, ActInfo]:
    """A state, and the transitions of a few steps from it, with what acting records."""
    state = algorithm.init(env, jax.random.key(0))

    def tick(world: fragmenta.World, _: None) -> tuple[fragmenta.World, tuple[fragmenta.Transition, ActInfo]]:
        view = TeamView(world.observation, world.alive)
        action, (log_prob, _) = algorithm.act(env, state.learner.params, view, (), world.key)
        world, transition = env.step(world, action)
        return world, (transition, ActInfo(log_prob))

    _, (trajectory, acted) = jax.lax.scan(tick, state.world, length=algorithm.horizon)
    assert not jnp.any(trajectory.terminated[-1])
    return state, trajectory, acted
