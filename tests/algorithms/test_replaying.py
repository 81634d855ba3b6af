"""What algorithms do with their replay: when they begin to learn from it, and what they get out of it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragmenta
from fragmenta import DQN, R2D2, SAC, Environment, make
from fragmenta.algorithms import ALGORITHMS
from fragmenta.envs import Stack
from fragmenta.tracing.iteration import iteration
from helpers import assert_same, initial_state
from sights import BrightHalf, Medley

SMALL: dict[str, Any] = {"num_envs": 4, "horizon": 1, "batch_size": 8, "buffer_size": 64, "updates": 2, "hidden": (8,)}
SEQUENCES: dict[str, Any] = {"burn_in": 2, "length": 4, "memory": 4}
LONG = {
    **dict.fromkeys(("dqn", "r2d2", "pqn", "sac_discrete"), "CartPole-v1"),
    **dict.fromkeys(("sac", "td3"), "Pendulum-v1"),
    **dict.fromkeys(("qmix", "maddpg"), "ProbeTeam"),
}


@pytest.mark.parametrize(
    ("algorithm", "env", "span"),
    [
        pytest.param(DQN(learning_starts=0, n_step=5, prioritized=True, **SMALL), "CartPole-v1", 5, id="n-step"),
        pytest.param(R2D2(learning_starts=0, prioritized=True, **SEQUENCES, **SMALL), "ProbeMemory", 6, id="sequences"),
    ],
)
def test_nothing_is_learned_before_a_whole_span_is_there(algorithm: Any, env: str, span: int) -> None:
    environment = make(env)
    iterate, state = jax.jit(iteration(algorithm, environment)), initial_state(algorithm, environment)
    for count in range(1, span + 4):
        state, metrics = iterate(state)
        learned = max(0, count - span + 1)
        assert int(state.learner.updates) == 2 * learned
        assert float(metrics["replay_ratio"]) == pytest.approx(learned / count * 2 * 8 / 4)
        priorities = np.asarray(state.replay.priorities.rows)
        assert (priorities > 0).tolist() == [[row < learned for row in range(priorities.shape[1])]] * 4


@pytest.mark.brief("dqn", "sac")
@pytest.mark.parametrize("name", LONG)
def test_a_run_may_have_more_steps_than_an_integer_counts(name: str) -> None:
    """Exploration ended long before, and does not begin again; schedules go on."""
    env, settings = make(LONG[name]), {} if name == "pqn" else {"batch_size": 8, "buffer_size": 256, "updates": 1}
    few: dict[str, Any] = {"num_envs": 4, "horizon": 4, "hidden": (8,), "exploration_share": 1e-3, **settings}
    few = {key: value for key, value in few.items() if hasattr(ALGORITHMS[name], key)}
    algorithm = ALGORITHMS[name](schedule=("max_grad_norm=linear:1:2",), total_steps=10**11, **few)
    state, iterate = initial_state(algorithm, env), jax.jit(iteration(algorithm, env))
    worlds = []
    for exponent in (26, 30):
        later = state._replace(iteration=jnp.asarray(2**exponent, jnp.int32))
        worlds.append(iterate(later)[0].world)
        share = algorithm.at(later).max_grad_norm - 1.0  # pyright: ignore
        assert float(share) == pytest.approx(2**exponent * 16 / 10**11, rel=1e-5)
    assert_same(*worlds, 0)


def test_numbers_larger_than_an_integer_are_refused_where_they_count_rows() -> None:
    result = fragmenta.train("dqn", "CartPole-v1", total_steps=3 * 10**9, stop_at_return=1.0, progress=False)
    assert result.summary["total_steps"] < 10_000
    for name in ("buffer_size", "learning_starts"):
        with pytest.raises(
            fragmenta.ConfigError, match=rf"^{name} is 3000000000: it must be from \d to 2\.14748e\+09$"
        ):
            fragmenta.train("dqn", "CartPole-v1", **{name: 3 * 10**9})


@pytest.mark.parametrize(
    ("algorithm", "env"),
    [
        pytest.param(DQN(**SMALL), BrightHalf(), id="picture"),
        pytest.param(DQN(**SMALL), Stack(BrightHalf(), 2), id="stack"),
        pytest.param(R2D2(**SEQUENCES, **SMALL), Stack(BrightHalf(), 2), id="sequences"),
        pytest.param(SAC(**SMALL), Medley(continuous=True), id="dictionary"),
    ],
)
def test_bytes_are_stored_and_sampled_as_bytes(algorithm: Any, env: Environment) -> None:
    def drawn(key: jax.Array) -> Any:
        state = algorithm.init(env, key)
        return state.replay, algorithm.sample(state.replay, state.keys, 0.0)

    replay, batches = jax.eval_shape(drawn, jax.random.key(0))
    sampled = getattr(batches, "steps", batches)
    for observations in (replay.steps.observation, sampled.observation, sampled.next_observation):
        pictures = [x for x in jax.tree.leaves(observations) if x.shape[-3:] in ((6, 8, 1), (2, 6, 6))]
        assert pictures
        assert {str(picture.dtype) for picture in pictures} == {"uint8"}
