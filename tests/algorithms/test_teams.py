"""Algorithms for teams reach known values, do nothing illegal, and ignore agents that dropped out."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragmenta
from fragmenta import IPPO, MADDPG, QMIX, VDN, ConfigError, make
from fragmenta.envs.probes import ProbeTeam
from fragmenta.evaluation.evaluate import evaluate
from fragmenta.nn.mixing import Mixer
from fragmenta.rl.masks import masked_logits
from fragmenta.rl.teams import TeamView
from helpers import assert_same, plain
from small_teams import AimingTeam, TwoSteps, UnlikeTeam

REPLAY: dict[str, Any] = {
    "num_envs": 8,
    "batch_size": 64,
    "buffer_size": 4_000,
    "learning_starts": 500,
    "updates": 4,
    "learning_rate": 2e-3,
    "anneal": False,
    "gamma": 0.9,
    "hidden": (32, 32),
    "total_steps": 16_000,
}
ALWAYS_RANDOM = {"exploration": 1.0, "final_exploration": 1.0, "gamma": 0.99}
SHORT = {**REPLAY, "learning_starts": 16, "total_steps": 64}
KINDS: list[Any] = [VDN, pytest.param(QMIX, marks=pytest.mark.full), pytest.param(MADDPG, marks=pytest.mark.full)]


@pytest.mark.full
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", [VDN, QMIX])
def test_the_value_of_a_team_is_that_of_its_mean_reward(kind: type[VDN], shared: bool) -> None:
    algorithm, env = kind(target_every=50, shared=shared, **REPLAY), ProbeTeam()
    result = fragmenta.train(algorithm, env)
    assert evaluate(algorithm, env, result.params, 20).mean == 2.5, "1, 2, 3 and 4 steps, a reward of 1 each"
    world = env.reset(jax.random.split(jax.random.key(0), 4))
    for time in range(4):
        encoded = algorithm.encode_each(env, result.params, TeamView(world.observation, world.alive))
        values = jnp.max(algorithm.values(env, result.params, encoded), axis=-1)
        value = algorithm.team_value(result.params, jnp.where(world.alive, values, 0.0), encoded)
        left = [agent + 1 - time for agent in range(time, 4)]
        expected = sum((1 - 0.9**steps) / (1 - 0.9) for steps in left) / 4
        np.testing.assert_allclose(value, expected, atol=0.15)
        world, _ = env.step(world, algorithm.best(env, result.params, encoded))


@pytest.mark.full
@pytest.mark.parametrize(("kind", "reached"), [(VDN, 7.0), (QMIX, 8.0)])
def test_only_a_mixed_value_finds_the_better_of_two_games(kind: type[VDN], reached: float) -> None:
    algorithm = kind(target_every=50, **{**REPLAY, **ALWAYS_RANDOM})
    result = fragmenta.train(algorithm, TwoSteps())
    assert evaluate(algorithm, TwoSteps(), result.params, 4).mean == reached


@pytest.mark.full
@pytest.mark.parametrize("shared", [True, False])
def test_critics_that_see_everything_reach_the_known_values(shared: bool) -> None:
    algorithm, env = MADDPG(shared=shared, **REPLAY), ProbeTeam()
    result = fragmenta.train(algorithm, env)
    assert evaluate(algorithm, env, result.params, 20).mean == 2.5
    assert result.metrics[-1]["value_loss"] < 0.05


@pytest.mark.full
def test_two_agents_agree_on_the_better_game() -> None:
    algorithm = MADDPG(**REPLAY)
    assert evaluate(algorithm, TwoSteps(), fragmenta.train(algorithm, TwoSteps()).params, 4).mean == 8.0


@pytest.mark.full
def test_continuous_actions_follow_what_is_observed() -> None:
    algorithm, env = MADDPG(**REPLAY), AimingTeam()
    assert evaluate(algorithm, env, fragmenta.train(algorithm, env).params, 50).mean > 0.98


@pytest.mark.parametrize("kind", KINDS)
def test_illegal_actions_are_never_done(kind: Any) -> None:
    algorithm, env = kind(**SHORT), UnlikeTeam(agents=3)
    result = fragmenta.train(algorithm, env)
    assert all(record["return_mean"] >= 0 for record in result.metrics), "an illegal action costs 100"
    for deterministic in (True, False):
        assert evaluate(algorithm, env, result.params, 200, deterministic=deterministic).returns.min() >= 0


@pytest.mark.full
def test_separate_networks_learn_the_best_legal_action() -> None:
    env = UnlikeTeam()
    algorithm = IPPO(num_envs=16, horizon=8, epochs=4, minibatches=2, hidden=(32,), shared=False, total_steps=12_800)
    trained, learned = fragmenta.train(algorithm, env), VDN(target_every=50, **REPLAY)
    best = (0.25 + (2 * 1.0 + 0.5) / 3) / 2
    for kind, params in ((algorithm, trained.params), (learned, fragmenta.train(learned, env).params)):
        assert evaluate(kind, env, params, 2_000).mean == pytest.approx(best, abs=0.02)


@pytest.mark.full
@pytest.mark.parametrize("kind", [VDN, QMIX, MADDPG])
def test_garbage_from_agents_that_dropped_out_changes_nothing(kind: Any) -> None:
    algorithm = kind(**SHORT)
    (state, metrics), (other_state, other_metrics) = (
        plain(algorithm, ProbeTeam(garbage=garbage), 3) for garbage in (1e6, float("nan"))
    )
    assert_same(state.learner, other_state.learner, 0.0)
    assert_same(metrics, other_metrics, 0.0)
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(state.learner.params))


def test_a_mixed_value_never_falls_as_an_agents_value_rises() -> None:
    mixer, keys = Mixer(8, 16), jax.random.split(jax.random.key(0), 3)
    values, everything = jax.random.normal(keys[0], (50, 3)), jax.random.normal(keys[1], (50, 5))
    params = mixer.init(keys[2], values, everything)
    slopes = jax.grad(lambda x: jnp.sum(mixer.apply(params, x, everything)))(values)
    assert float(jnp.min(slopes)) >= 0.0
    assert float(jnp.max(slopes)) > 0.0


def test_masked_logits() -> None:
    logits = jnp.asarray([1.0, 5.0, 2.0])
    assert masked_logits(logits, None) is logits
    masked = masked_logits(logits, jnp.asarray([1.0, 0.0, 1.0]))
    assert bool(jnp.all(jnp.isfinite(masked)))
    assert jax.nn.softmax(masked)[1] == 0.0


@pytest.mark.parametrize(
    ("kind", "env", "message"),
    [
        (VDN, "CartPole-v1", "is not a team with discrete actions"),
        (QMIX, AimingTeam(), "is not a team with discrete actions"),
        (MADDPG, "Pendulum-v1", "is not a team with discrete or continuous actions"),
    ],
)
def test_what_is_no_team_of_theirs_is_one_line(kind: Any, env: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        kind().validate(make(env))
    assert "\n" not in str(error.value)


def test_a_team_trains_with_returns_over_several_steps_and_priorities() -> None:
    algorithm = dataclasses.replace(VDN(**SHORT), n_step=3, prioritized=True)
    assert fragmenta.train(algorithm, ProbeTeam()).summary["total_steps"] == 64
