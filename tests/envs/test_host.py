"""Environments on the host: the canonical transition, seeds by index, and the same results in every mode."""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fragmenta import PPO, Cluster, ConfigError, EnvOptions, make, project, trace
from fragmenta.envs import Box, Dict, Discrete, HostEnvironment, MultiDiscrete
from fragmenta.rl import keys_by_index
from fragmenta_host.catalogue import Spec
from fragmenta_host.options import PoolOptions
from fragmenta_host.pool import Pool
from helpers import assert_same, cpu_cluster, plain, planned, run_plan

MODES = ("serial", "threads", "processes")


def pool(name: str, mode: str = "serial", workers: int = 2, **arguments: Any) -> Pool:
    package, _, name = name.partition(":")
    return Pool(Spec(package, name, arguments), PoolOptions(mode=mode, workers=workers))


def test_next_observation_is_the_one_before_the_reset() -> None:
    environments = pool("host_envs:Counter", ends=2)
    first, _ = environments.reset(np.arange(3))
    assert first[0][:, :2].tolist() == [[1, 0]] * 3
    pairs = []
    for _ in range(3):
        stepped = environments.step(0, np.full(3, 2, np.int32))
        pairs.append((stepped.next_observation[0][0, :2].tolist(), stepped.observation[0][0, :2].tolist()))
        assert stepped.reward.tolist() == [1.0] * 3, "action 2 of 0, 1, 2 is what the environment calls 1"
    environments.close()
    assert pairs == [([1, 1], [1, 1]), ([1, 2], [2, 0]), ([2, 1], [2, 1])]


@pytest.mark.parametrize(("ends", "cut", "flags"), [(2, 9, (True, False)), (9, 2, (False, True)), (2, 2, (True, True))])
def test_truncation_is_not_termination(ends: int, cut: int, flags: tuple[bool, bool]) -> None:
    environments = pool("host_envs:Counter", ends=ends, cut=cut)
    environments.reset(np.arange(1))
    results = [environments.step(0, np.zeros(1, np.int32)) for _ in range(2)]
    environments.close()
    assert [(bool(result.terminated[0]), bool(result.truncated[0])) for result in results] == [(False, False), flags]


def by_hand(seed: int, actions: list[int]) -> list[tuple[np.ndarray, float, bool, bool]]:
    """Gymnasium's CartPole, reset at the end of each episode."""
    env = gymnasium.make("CartPole-v1", max_episode_steps=15)
    env.reset(seed=seed)
    rows = []
    for action in actions:
        after, reward, terminated, truncated, _ = env.step(action)
        rows.append((after, float(reward), terminated, truncated))
        if terminated or truncated:
            env.reset()
    env.close()
    return rows


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lanes", [1, 2])
def test_every_mode_steps_like_plain_gymnasium(mode: str, lanes: int) -> None:
    count, steps = 6, 60
    actions = np.random.default_rng(0).integers(2, size=(steps, count)).astype(np.int32)
    environments = pool("gymnasium:CartPole-v1", mode, max_episode_steps=15)
    environments.open(lanes)
    environments.reset(np.arange(10, 10 + count))
    size = count // lanes
    results = [[environments.step(low, a[low : low + size]) for low in range(0, count, size)] for a in actions]
    environments.close()
    assert environments.mode == mode
    ends = 0
    for index in range(count):
        for step, expected in enumerate(by_hand(10 + index, actions[:, index].tolist())):
            part, row = results[step][index // size], index % size
            np.testing.assert_array_equal(part.next_observation[0][row], expected[0])
            assert (part.reward[row], part.terminated[row], part.truncated[row]) == expected[1:]
            ends += expected[2] or expected[3]
    assert ends > 10, "too few episodes ended to see anything"


@pytest.mark.full
def test_dictionaries_images_and_several_choices() -> None:
    env = make("host_envs:Parts")
    assert isinstance(env, HostEnvironment)
    observations = Dict((("0", Box(0.0, 1.0, (2,), "int32")), ("1", Box(-1.0, 1.0, (2, 2)))))
    camera = Box(0.0, 255.0, (16, 16, 3), "uint8")
    assert dict(env.observation_space.spaces) == {"number": Discrete(3), "camera": camera, "both": observations}  # pyright: ignore
    assert env.action_space == MultiDiscrete((3, 2))
    with env.opened():
        world = env.reset(keys_by_index(jax.random.key(0), 4))
        number = world.observation["number"]
        assert world.observation["camera"].shape == (4, 16, 16, 3)
        np.testing.assert_array_equal(world.observation["camera"][:, 0, 0, 0], 30 * (5 + number))
        np.testing.assert_array_equal(world.observation["both"]["0"][0], [1, 0])
        world, transition = env.step(world, jnp.stack([number, number * 0], axis=-1))
        assert transition.reward.tolist() == [1.0] * 4


@pytest.mark.full
def test_actions_are_clipped_to_their_bounds() -> None:
    environments = pool("host_envs:Clipped")
    environments.reset(np.arange(2))
    stepped = environments.step(0, np.array([[9.0, 9.0], [-9.0, -9.0]], np.float32))
    environments.close()
    assert stepped.reward.tolist() == [0.75, -0.5]


@pytest.mark.full
def test_wrappers_arguments_and_stacking() -> None:
    wrappers = ("host_envs:Doubled",)
    env = make("host_envs:Counter", EnvOptions(env_args='{"ends": 2}', wrappers=wrappers, stack=3))
    with env.opened():
        world = env.reset(keys_by_index(jax.random.key(0), 2))
        assert world.observation.shape == (2, 3, 3)
        world, transition = env.step(world, jnp.full(2, 2))
        assert transition.reward.tolist() == [2.0, 2.0]
        assert transition.next_observation[0, :, 1].tolist() == [0.0, 0.0, 1.0]


@pytest.mark.full
def test_a_bare_name_is_the_jax_version_if_there_is_one() -> None:
    assert not isinstance(make("CartPole-v1"), HostEnvironment)
    lake = make("FrozenLake-v1")
    assert lake.title == "gymnasium:FrozenLake-v1"
    assert lake.observation_space == Discrete(16)


def test_a_host_option_for_an_environment_in_jax_is_refused() -> None:
    with pytest.raises(ConfigError, match="env_workers is for host environments, but 'CartPole-v1' is in JAX"):
        make("CartPole-v1", EnvOptions(env_workers=2))


@pytest.mark.full
def test_one_compiled_program_cannot_contain_a_host_environment() -> None:
    graph = trace(PPO(), "gymnasium:CartPole-v1")
    assert graph.host_stages == ("step",)
    with pytest.raises(ConfigError, match=r"policy 'fused' is one compiled program, but 'step' .* runs on the host"):
        project(graph, "fused", Cluster(("cpu:0",)))


ALGORITHM = PPO(num_envs=8, horizon=16, total_steps=100_000, hidden=(16, 16))


@pytest.fixture(scope="module")
def expected() -> Any:
    env = make("gymnasium:CartPole-v1")
    with env.opened():
        return plain(ALGORITHM, env, 6)


CASES: list[Any] = [("single_learner_coarse", 2)]
MORE = [
    ("single_learner_coarse", 1),
    ("single_learner_fine", 2),
    ("multi_learner", 2),
    ("single_learner_coarse", 4),
    ("single_learner_fine", 1),
    ("multi_learner", 1),
    ("multi_learner", 8),
    ("central", 2),
]
CASES += [pytest.param(*case, marks=pytest.mark.full) for case in MORE]


@pytest.mark.parametrize(("policy", "replicas"), CASES)
def test_every_policy_equals_the_plain_program(policy: str, replicas: int, expected: Any) -> None:
    env = make("gymnasium:CartPole-v1")
    devices = 8 if policy in ("multi_learner", "central") else 3
    plan = planned(ALGORITHM, env, policy, cpu_cluster(devices, replicas), merge=True)
    (program,) = [p for p in plan.programs if "step" in p.fragment.stages]
    assert program.fragment.replicas == replicas, "replicas that wait for environments are not merged"
    with env.opened(program.replicas):
        state, metrics = run_plan(plan, ALGORITHM, env, 6)
    assert_same(expected[0], state, 0 if replicas == 1 else 1e-5)
    assert_same(expected[1], metrics, 0 if replicas == 1 else 1e-4, floor=0.1)
