"""Packages that step many environments at once: reset rows are hidden, final observations kept, seeds are by index."""

import sys
import types
import warnings
from typing import Any

import ale_py
import envpool
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

import fragmenta
from fragmenta import PPO
from fragmenta.envs import host
from fragmenta.rl import keys_by_index
from fragmenta_core.faults import UnusableError
from fragmenta_host.catalogue import Spec
from fragmenta_host.options import PoolOptions
from fragmenta_host.pool import Pool, StepArrays
from helpers import assert_same, cpu_cluster

BREAKOUT = ("ale", "breakout")
CARTPOLE = ("envpool", "CartPole-v1")
SEEDS = np.asarray([5, 900, 2**31 - 1, 17])


def steps(spec: Spec, actions: np.ndarray, seeds: np.ndarray = SEEDS, parts: int = 1) -> tuple[Any, list[StepArrays]]:
    """The first observations, and the result of each step; lanes step their parts in turn."""
    pool = Pool(spec)
    pool.open(parts)
    first, _ = pool.reset(seeds)
    size, results = len(seeds) // parts, []
    for action in actions:
        lanes = [pool.step(low, action[low : low + size]) for low in range(0, len(seeds), size)]
        results.append(jax.tree.map(lambda *rows: np.concatenate(rows), *lanes))
    pool.close()
    return first, results


def random_actions(choices: int, count: int, num_envs: int = len(SEEDS)) -> np.ndarray:
    return np.random.default_rng(0).integers(0, choices, (count, num_envs)).astype(np.int32)


def test_envpool_reset_rows_are_hidden() -> None:
    actions = random_actions(2, 120)
    limit = {"max_episode_steps": 20}
    first, results = steps(Spec(*CARTPOLE, limit), actions)
    # Reference, one environment at a time: the step after the end of an episode resets and ignores its action.
    ends = {"terminated": 0, "truncated": 0}
    for i, seed in enumerate(SEEDS):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about bounds that become float32
            env = envpool.make("CartPole-v1", "gymnasium", num_envs=1, seed=[int(seed)], **limit)
            assert env.observation_space.shape == (4,)
        observation = env.reset()[0]
        np.testing.assert_array_equal(first[0][i], observation[0])
        for action, step in zip(actions[:, i], results, strict=True):
            observation, reward, terminated, truncated, _ = env.step(np.asarray([action]))
            np.testing.assert_array_equal(step.next_observation[0][i], observation[0])
            assert (step.reward[i], step.terminated[i], step.truncated[i]) == (reward[0], terminated[0], truncated[0])
            assert step.reward[i] == 1.0, "the row of a reset would say 0"
            if terminated[0] or truncated[0]:
                ends["terminated" if terminated[0] else "truncated"] += 1
                observation = env.step(np.asarray([0]))[0]
            np.testing.assert_array_equal(step.observation[0][i], observation[0])
    assert min(ends.values()) > 1, f"the test saw too little: {ends}"


@pytest.mark.full
@pytest.mark.parametrize(
    ("spec", "choices", "count"),
    [
        (Spec(*CARTPOLE), 2, 60),
        (Spec(*BREAKOUT, {"episodic_life": True}), 4, 80),
        (Spec("envpool", "Breakout-v5", {"episodic_life": True}), 4, 80),
    ],
    ids=str,
)
def test_an_environment_depends_on_its_own_seed_only(spec: Spec, choices: int, count: int) -> None:
    actions = random_actions(choices, count)
    first, whole = steps(spec, actions)
    split_first, split = steps(spec, actions, parts=2)
    alone_first, alone = steps(spec, actions[:, 2:], SEEDS[2:])
    np.testing.assert_array_equal(first[0], split_first[0])
    np.testing.assert_array_equal(first[0][2:], alone_first[0])
    for a, b, c in zip(whole, split, alone, strict=True):
        jax.tree.map(np.testing.assert_array_equal, a, b)
        jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[2:], y), a, c)
    assert sum(step.terminated.sum() for step in whole) > 2, "no reset happened: the test saw too little"
    assert (first[0][0] != first[0][1]).any() or spec.package != "envpool"


def test_actions_are_clipped_and_observations_are_single_precision() -> None:
    spec = Spec("envpool", "HalfCheetah-v4")
    wild = np.full((5, 4, 6), 7.0, np.float32)
    _, out_of_bounds = steps(spec, wild)
    _, edge = steps(spec, np.ones_like(wild))
    assert out_of_bounds[-1].next_observation[0].dtype == np.float32
    for a, b in zip(out_of_bounds, edge, strict=True):
        np.testing.assert_array_equal(a.reward, b.reward)


def test_envpool_stacks_with_the_option_name_of_the_task() -> None:
    assert Pool(Spec("envpool", "Pong-v5", stack=2)).description.observation.shape == (2, 84, 84)
    assert Pool(Spec("envpool", "HalfCheetah-v4", stack=3)).description.observation.shape == (3, 17)
    with pytest.raises(UnusableError, match="cannot stack"):
        Pool(Spec(*CARTPOLE, stack=2))


def area_resize(image: np.ndarray, size: tuple[int, int], interpolation: int) -> np.ndarray:
    """cv2.resize with INTER_AREA: every new pixel is the mean of the pixels that it covers."""
    for axis, new in enumerate(reversed(size)):
        divisible = np.repeat(image, new // np.gcd(new, image.shape[axis]), axis)
        image = np.moveaxis(np.moveaxis(divisible, axis, 0).reshape(new, -1, image.shape[1 - axis]).mean(1), 0, axis)
    return np.rint(image).astype(np.uint8)


@pytest.mark.full
@pytest.mark.parametrize(("game", "name"), [("pong", "ALE/Pong-v5"), ("breakout", "ALE/Breakout-v5")])
def test_frames_equal_gymnasiums_preprocessing(game: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bitwise if OpenCV is installed; otherwise a mean halfway between two integers may be rounded either way."""
    try:
        import cv2  # pyright: ignore[reportMissingImports]  # noqa: F401

        allowed = 0
    except ImportError:
        stand_in = types.ModuleType("cv2")
        stand_in.__dict__.update(resize=area_resize, INTER_AREA=3)
        monkeypatch.setitem(sys.modules, "cv2", stand_in)
        allowed = 1
    gymnasium.register_envs(ale_py)
    plain = gymnasium.make(name, frameskip=1, repeat_action_probability=0.0, disable_env_checker=True)
    expected = FrameStackObservation(AtariPreprocessing(plain, noop_max=0, frame_skip=4), 4, padding_type="zero")
    actions = random_actions(plain.action_space.n, 550, 1)
    first, results = steps(Spec("ale", game, {"noop_max": 0, "use_fire_reset": False}), actions, SEEDS[:1])
    largest = 0

    def compare(a: np.ndarray, b: np.ndarray) -> None:
        nonlocal largest
        largest = max(largest, int(np.abs(a.astype(int) - b.astype(int)).max()))

    observation, _ = expected.reset(seed=int(SEEDS[0]))
    compare(observation, first[0][0])
    ends, lit = 0, 0
    for action, step in zip(actions[:, 0], results, strict=True):
        observation, reward, terminated, truncated, _ = expected.step(action)
        assert (reward, terminated, truncated) == (step.reward[0], step.terminated[0], step.truncated[0])
        compare(observation, step.next_observation[0][0])
        if terminated or truncated:
            ends += 1
            observation, _ = expected.reset()
        compare(observation, step.observation[0][0])
        lit += int(step.observation[0].max() > 100)
    assert largest <= allowed
    assert lit > 400
    assert ends > 1 or game == "pong"
    expected.close()


def test_atari_time_limit_is_no_termination() -> None:
    _, results = steps(Spec(*BREAKOUT, {"max_num_frames_per_episode": 80}), random_actions(4, 60))
    cut = [(time, i) for time, step in enumerate(results) for i in np.flatnonzero(step.truncated)]
    assert len(cut) >= 8
    for time, i in cut:
        step = results[time]
        assert not step.terminated[i]
        assert not step.observation[0][i][:3].any(), "a new game: only one frame of it yet"
        assert step.next_observation[0][i][:3].any(), "the last of the old one"


@pytest.mark.full
def test_atari_after_a_lost_life_the_game_restarts_or_continues() -> None:
    actions = random_actions(4, 120)
    for argument, goes_on in (("episodic_life", False), ("life_loss_info", True)):
        _, results = steps(Spec(*BREAKOUT, {argument: True}), actions)
        ended = [(step, i) for step in results for i in np.flatnonzero(step.terminated)]
        assert len(ended) > 8
        same = [bool((step.observation[0][i] == step.next_observation[0][i]).all()) for step, i in ended]
        # The loss of the last of five lives ends the game in any case.
        assert not any(same) if not goes_on else sum(same) > len(same) / 2


def test_atari_names() -> None:
    for name in ("ms_pacman", "MsPacman", "ALE/MsPacman-v5"):
        assert Pool(Spec("ale", name)).description.observation.shape == (4, 84, 84)
    assert Pool(Spec("ale", "pong", stack=2)).description.observation.shape == (2, 84, 84)


@pytest.mark.full
def test_learners_get_clipped_rewards_and_episodes_report_the_score() -> None:
    action = jnp.asarray(np.random.default_rng(1).integers(0, 9, (120, 2)), jnp.int32)
    rewards_by_clipping, totals = {}, {}
    for clipping in (True, False):
        env = host.make(Spec("ale", "ms_pacman", {"reward_clipping": clipping}))
        with env.opened():
            world, rewards = env.reset(keys_by_index(jax.random.key(0), 2)), []
            for each in action:
                world, transition = env.step(world, each)
                rewards.append(np.asarray(transition.reward))
        rewards_by_clipping[clipping] = np.asarray(rewards)
        totals[clipping] = np.asarray(world.finished.returns + world.episode_return)
    assert rewards_by_clipping[False].max() >= 10
    np.testing.assert_array_equal(rewards_by_clipping[True], np.clip(rewards_by_clipping[False], -1, 1))
    np.testing.assert_array_equal(totals[True], totals[False])
    np.testing.assert_array_equal(totals[False], rewards_by_clipping[False].sum(axis=0))
    for clipped, spec in (
        (True, Spec("envpool", "Pong-v5")),
        (False, Spec("envpool", "Pong-v5", {"reward_clip": False})),
    ):
        assert Pool(spec).description.clips_rewards == clipped


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (Spec("envpool", "Pongg-v5"), "unknown envpool environment 'Pongg-v5': did you mean 'Pong-v5'?"),
        (Spec(*CARTPOLE, {"frame_skipp": 2}), "cannot make envpool:CartPole-v1: .*frame_skipp"),
        (Spec(*CARTPOLE, {"seed": 2}), "cannot make envpool:CartPole-v1: .*seed"),
        (Spec("ale", "pongg"), "unknown Atari game 'pongg': did you mean 'pong'?"),
        (Spec("ale", "pong", {"frameskip": 0}), "cannot make ale:pong: Invalid frameskip"),
        (Spec("ale", "pong", {"num_threads": 2}), "cannot make ale:pong: .*num_threads"),
    ],
    ids=str,
)
def test_unusable_environments_are_refused_in_one_line(spec: Spec, message: str) -> None:
    with pytest.raises(UnusableError, match=message) as error:
        Pool(spec)
    assert "\n" not in str(error.value)


@pytest.mark.full
def test_ppo_learns_the_same_with_one_replica_and_with_two() -> None:
    algorithm = PPO(num_envs=8, horizon=16, epochs=2, total_steps=8 * 16 * 3, hidden=(8,))
    results = {}
    for replicas, devices in ((1, 1), (1, 2), (2, 3)):
        cluster = cpu_cluster(devices, replicas)
        result = fragmenta.train(algorithm, "envpool:CartPole-v1", policy="single_learner_coarse", cluster=cluster)
        results[replicas, devices] = result
        assert sum(record["episodes"] for record in result.metrics) > 5
    assert_same(results[1, 1].params, results[1, 2].params, 1e-5)
    assert_same(results[1, 1].params, results[2, 3].params, 1e-5)
    assert [r["episodes"] for r in results[1, 1].metrics] == [r["episodes"] for r in results[2, 3].metrics]


def test_restarts_of_vectorised_environments_are_refused() -> None:
    with pytest.raises(UnusableError, match="envpool:CartPole-v1 cannot restart single environments"):
        Pool(Spec(*CARTPOLE), PoolOptions(restarts=1))
