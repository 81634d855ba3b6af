"""`predict` of results and runs: observations as the environment returns them in, its own actions out."""

from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

import fragmenta
from fragmenta import MAPPO, ConfigError, RecurrentPPO
from fragmenta.algorithms import ALGORITHMS
from fragmenta.envs.host import seeds_of
from fragmenta.envs.probes import ProbeMask
from fragmenta.evaluation.evaluate import episode_keys, evaluate
from fragmenta.runs.predicting import TrainedPolicy
from host_envs import Counter, Parts
from small_teams import UnlikeTeam

SMALL = {"num_envs": 2, "horizon": 16, "hidden": (8,), "minibatches": 2, "epochs": 1, "total_steps": 32}


class Bounded(gymnasium.Env):
    """Every dimension of its actions has bounds of its own, narrower than the noise of the policy."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Box(np.float32([-0.1, 0.3]), np.float32([0.1, 0.4]))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        return np.zeros(2, np.float32), 1.0, False, True, {}


@pytest.mark.full
def test_playing_with_predict_gives_the_episode_of_the_evaluation(tmp_path: Path) -> None:
    """In Gymnasium's own loop, with the run's result and with the run opened again."""
    result = fragmenta.train("ppo", "gymnasium:CartPole-v1", run_dir=tmp_path / "run", **SMALL | {"total_steps": 2048})
    run, env = fragmenta.load(tmp_path / "run"), gymnasium.make("CartPole-v1")
    expected = evaluate(run.algorithm, run.env, run.params(), episodes=2).returns
    seeds = np.asarray(seeds_of(episode_keys(0, 2)[0]))
    for policy, seed, expected_return in zip((result, run), seeds, expected, strict=True):
        observation, _ = env.reset(seed=int(seed))
        total, done = 0.0, False
        while not done:
            action, _ = policy.predict(observation)
            observation, reward, terminated, truncated, _ = env.step(action)
            total, done = total + float(reward), terminated or truncated
        assert total == expected_return
    batch = np.stack([env.observation_space.sample() for _ in range(5)]).clip(-1, 1)
    actions, state = run.predict(batch)
    assert actions.shape == (5,)
    assert state is None
    assert [int(result.predict(row)[0]) for row in batch] == actions.tolist()


@pytest.mark.full
def test_sampled_actions_differ_and_the_most_likely_do_not() -> None:
    result = fragmenta.train("ppo", "CartPole-v1", **SMALL)
    observation = np.zeros((64, 4), np.float32)
    assert len(np.unique(result.predict(observation)[0])) == 1
    first, second = (result.predict(observation, deterministic=False)[0] for _ in range(2))
    assert len(np.unique(first)) == 2
    assert (first != second).any()


@pytest.mark.full
def test_actions_count_from_where_the_space_does() -> None:
    result = fragmenta.train("ppo", Counter, **SMALL)
    actions, _ = result.predict(np.zeros((200, 3)), deterministic=False)
    assert set(np.unique(actions)) == {-1, 0, 1}
    action, _ = result.predict(np.zeros(3))
    assert Counter().action_space.contains(action)


@pytest.mark.full
def test_dictionaries_with_images_and_several_choices() -> None:
    env = Parts()
    result = fragmenta.train("ppo", Parts, **SMALL)
    observations = [env.reset(seed=seed)[0] for seed in range(3)]
    singles = [result.predict(observation)[0] for observation in observations]
    assert all(env.action_space.contains(action) for action in singles)
    stacked = {name: np.stack([o[name] for o in observations]) for name in ("number", "camera")}
    stacked["both"] = tuple(np.stack([o["both"][i] for o in observations]) for i in range(2))
    np.testing.assert_array_equal(result.predict(stacked)[0], singles)
    with pytest.raises(ConfigError, match=r"the observation does not fit Dict.*: KeyError 'both'"):
        result.predict({"number": 5, "camera": observations[0]["camera"]})


@pytest.mark.full
def test_continuous_actions_are_clipped_to_the_bounds_of_each_dimension() -> None:
    result = fragmenta.train("ppo", Bounded, **SMALL)
    actions, _ = result.predict(np.zeros((50, 2), np.float32), deterministic=False)
    assert actions.dtype == np.float32
    np.testing.assert_array_equal(actions.min(axis=0), np.float32([-0.1, 0.3]))
    np.testing.assert_array_equal(actions.max(axis=0), np.float32([0.1, 0.4]))
    pendulum = fragmenta.train("ppo", "Pendulum-v1", **SMALL)
    assert np.abs(pendulum.predict(np.full((50, 3), 0.5), deterministic=False)[0]).max() <= 2.0


@pytest.mark.full
def test_a_memory_is_kept_between_calls_and_emptied_where_an_episode_starts() -> None:
    result = fragmenta.train(RecurrentPPO(**SMALL), "ProbeMemory")
    shape = fragmenta.make("ProbeMemory").observation_space.shape  # pyright: ignore[reportAttributeAccessIssue]
    observation = np.ones((2, *shape), np.float32)
    _, first = result.predict(observation)
    _, second = result.predict(observation, first)
    assert np.abs(second - first).max() > 0
    _, again = result.predict(observation, second, episode_start=[True, False])
    np.testing.assert_array_equal(again[0], first[0])
    assert np.abs(again[1] - first[1]).max() > 0
    _, alone = result.predict(observation[0])
    np.testing.assert_allclose(alone, first[0], atol=1e-6)
    with pytest.raises(
        ConfigError, match=r"state has shapes \[\(2, 64\)\], expected \[\(3, 64\)\]: pass what the last"
    ):
        result.predict(np.ones((3, *shape), np.float32), first)


@pytest.mark.full
def test_a_team_predicts_for_all_its_agents() -> None:
    result = fragmenta.train(MAPPO(num_envs=2, horizon=10, hidden=(8,), total_steps=20), "ProbeTeam")
    env = fragmenta.make("ProbeTeam")
    shape = env.observation_space.shape  # pyright: ignore[reportAttributeAccessIssue]
    actions, _ = result.predict(np.zeros((3, env.num_agents, *shape), np.float32))
    assert actions.shape[:2] == (3, env.num_agents)


@pytest.mark.brief("dqn", "vdn")
@pytest.mark.parametrize("name", ["dqn", "sac_discrete", "ppo_lstm", "vdn", "maddpg"])
def test_illegal_actions_are_never_predicted(name: str) -> None:
    env: Any = UnlikeTeam() if name in ("vdn", "maddpg") else ProbeMask()
    algorithm = ALGORITHMS[name](num_envs=4, hidden=(8,))  # pyright: ignore[reportCallIssue]
    policy = TrainedPolicy(algorithm, env, algorithm.params(algorithm.init(env, jax.random.key(0))))
    rng = np.random.default_rng(0)
    mask, seen = (dict(env.observation_space.spaces)[part].shape for part in ("action_mask", "observation"))
    team = (env.agents,) if env.team_size else ()
    legal = rng.random((200, *team, *mask)) < 0.5
    legal[..., 0] |= ~legal.any(axis=-1)
    numbers = rng.normal(size=(200, *team, *seen)).astype(np.float32)

    def are_legal(mask: np.ndarray, deterministic: bool) -> np.ndarray:
        actions, _ = policy.predict({"action_mask": mask, "observation": numbers}, deterministic=deterministic)
        return np.take_along_axis(legal, actions[..., None], axis=-1)

    for deterministic in (True, False):
        assert are_legal(legal, deterministic).all()
        assert not are_legal(np.ones_like(legal), deterministic).all(), "the mask makes no difference here"


@pytest.mark.full
def test_mistakes_are_one_line() -> None:
    result = fragmenta.train("ppo", "CartPole-v1", **SMALL)
    with pytest.raises(ConfigError, match=r"observation has shape \(5,\): expected \(4,\), or \(n, 4\) for a batch"):
        result.predict(np.zeros(5))
    with pytest.raises(
        ConfigError,
        match=r"2 seeds were trained: give a run_dir RUN and choose one, as in fragmenta.load\('RUN/seed-0'\)",
    ):
        fragmenta.train("ppo", "CartPole-v1", seeds=2, **SMALL).predict(np.zeros(4))
