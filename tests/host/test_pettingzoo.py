"""PettingZoo teams: agents that drop out keep their index, truncation is not termination, and MAPPO trains them."""

import dataclasses
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragmenta
from fragmenta import IPPO, MADDPG, MAPPO, PPO, QMIX, VDN, Box, Cluster, ConfigError, Discrete, EnvOptions, make
from fragmenta.envs import host
from fragmenta.envs.host import HostEnvironment
from fragmenta.evaluation.evaluate import evaluate
from fragmenta.rl import keys_by_index
from fragmenta_core.faults import EnvironmentFaultError, UnusableError
from fragmenta_host.catalogue import Spec
from fragmenta_host.options import PoolOptions
from fragmenta_host.pettingzoo_envs import MOVED, PettingZooEnv
from fragmenta_host.pool import Pool
from helpers import assert_same, cpu_cluster

TEAM = "pettingzoo:vanishing_team"
SMALL = MAPPO(num_envs=6, horizon=8, epochs=1, minibatches=2, hidden=(8,), total_steps=6 * 8 * 2)


def team(mode: str = "serial", **arguments: Any) -> HostEnvironment:
    return host.make(Spec("pettingzoo", "vanishing_team", arguments), PoolOptions(mode=mode))


def rollout(env: HostEnvironment, num_envs: int, steps: int) -> tuple[list[Any], list[Any]]:
    """The worlds and transitions if agent i always takes action i."""
    action = jnp.tile(jnp.arange(env.num_agents, dtype=jnp.int32) % 3, (num_envs, 1))
    worlds, transitions = [], []
    with env.opened():
        world = env.reset(keys_by_index(jax.random.key(0), num_envs))
        for _ in range(steps):
            worlds.append(world)
            world, transition = env.step(world, action)
            transitions.append(jax.device_get(transition))
        worlds.append(world)
    return jax.device_get(worlds), transitions


@pytest.mark.full
def test_agents_that_dropped_out_keep_their_index_and_get_zero_observations_and_rewards() -> None:
    worlds, transitions = rollout(team(), 2, 7)
    expected = np.asarray([[1, 1, 1], [1, 1, 1], [0, 1, 1], [0, 0, 1], [0, 0, 1], [1, 1, 1], [1, 1, 1]], bool)
    for time, (world, transition) in enumerate(zip(worlds, transitions, strict=False)):
        np.testing.assert_array_equal(world.alive, np.tile(expected[time], (2, 1)))
        np.testing.assert_array_equal(transition.alive, world.alive)
        np.testing.assert_array_equal(transition.observation, world.observation)
        assert (world.observation[..., 1][world.alive] == time % 5).all()
        np.testing.assert_array_equal(transition.reward, expected[time] * np.asarray([[0.0, 1.0, 2.0]] * 2))
    assert (worlds[4].observation[:, :2] == 0).all(), "long gone: no observation at all"
    # The first agent terminates at 2, the second at 3; the last is truncated at 5, so its value is bootstrapped.
    after = [transition.next_alive[0].tolist() for transition in transitions[:5]]
    assert after == [[1, 1, 1], [0, 1, 1], [0, 0, 1], [0, 0, 1], [0, 0, 1]]
    flags = [(bool(transition.terminated[0]), bool(transition.truncated[0])) for transition in transitions[:5]]
    assert flags == [(False, False)] * 4 + [(False, True)]
    assert worlds[-1].finished.episodes.tolist() == [1, 1]
    np.testing.assert_allclose(worlds[-1].finished.returns, (2 * 0 + 3 * 1 + 5 * 2) / 3)


def test_the_last_observation_is_from_before_the_reset() -> None:
    worlds, transitions = rollout(team(), 2, 6)
    last = transitions[4].next_observation[:, 2]
    assert (last[:, :2] == [2, 5]).all(), "agent 2 at step 5"
    assert (worlds[5].observation[..., 1] == 0).all(), "the world shows the next episode"
    np.testing.assert_array_equal(transitions[3].next_observation, worlds[4].observation)


@pytest.mark.parametrize(
    ("leaves", "limit", "flags", "remaining"),
    [
        ((2, 2), 9, (True, False), [0, 0]),
        ((1, 2), 9, (True, False), [0, 0]),
        ((2, None), 2, (False, True), [0, 1]),  # one terminates in the step that truncates the other
        ((None, None), 2, (False, True), [1, 1]),
        ((2, 2), 2, (True, False), [0, 0]),  # both terminate at the limit: none was truncated
    ],
)
def test_how_an_episode_ends(leaves: Any, limit: int, flags: tuple[bool, bool], remaining: list[int]) -> None:
    _, transitions = rollout(team(leaves=leaves, limit=limit), 1, 2)
    assert not transitions[0].terminated[0]
    assert not transitions[0].truncated[0]
    assert (bool(transitions[1].terminated[0]), bool(transitions[1].truncated[0])) == flags
    assert transitions[1].next_alive[0].tolist() == remaining


@pytest.mark.full
def test_processes_give_the_same_results_as_this_process() -> None:
    for a, b in zip(rollout(team(), 4, 7)[1], rollout(team("processes"), 4, 7)[1], strict=True):
        jax.tree.map(np.testing.assert_array_equal, a, b)


def train(policy: str, replicas: int, devices: int, env: str = TEAM, **options: Any) -> Any:
    cluster: Cluster = cpu_cluster(devices, replicas)
    result = fragmenta.train(
        SMALL, env, policy=policy, cluster=cluster, options=fragmenta.RunOptions(deadline=60.0), **options
    )
    return result.params, result.metrics


@pytest.mark.full
def test_mappo_learns_the_same_wherever_it_runs() -> None:
    expected, metrics = train("single_learner_coarse", 1, 1)
    assert sum(record["episodes"] for record in metrics) > 0, "no episode ended: the test saw too little"
    # With three replicas every agent has its own.
    for policy, replicas, devices in (("single_learner_coarse", 2, 3), ("environments", 3, 3)):
        params, own_metrics = train(policy, replicas, devices)
        assert_same(expected, params, 1e-5)
        for before, after in zip(metrics, own_metrics, strict=True):
            assert before["episodes"] == after["episodes"]
            assert before["return_mean"] == pytest.approx(after["return_mean"], rel=1e-6)


def test_one_agent_is_a_team_too() -> None:
    env = team(leaves=(None,))
    assert (env.team_size, env.num_agents) == (1, 1)
    with pytest.raises(ConfigError, match="use mappo"):
        PPO().validate(env)
    MAPPO().validate(env)
    env.pool.close()


def test_mappo_refuses_a_single_agent_on_the_host() -> None:
    env = make("gymnasium:CartPole-v1")
    with pytest.raises(ConfigError, match="not a team"):
        MAPPO().validate(env)
    env.pool.close()


@pytest.mark.parametrize("masks", ["none", "info", "observation"])
def test_unlike_spaces_are_padded_and_what_is_padded_or_illegal_is_never_done(masks: str) -> None:
    """The environment refuses any action that is not legal, in training and in evaluation."""
    env = host.make(Spec("pettingzoo", "unlike_team", {"masks": masks}), PoolOptions(mode="serial"))
    parts = dict(env.observation_space.spaces)
    assert (parts["observation"].shape, parts["action_mask"].shape, env.action_space) == ((4,), (3,), Discrete(3))
    with env.opened():
        world = env.reset(keys_by_index(jax.random.key(0), 2))
        assert world.observation["observation"][0].tolist() == [[0, 0, 0, 0], [1, 0, 1, 2]]
        legal = [[0, 1, 0], [0, 1, 1]] if masks != "none" else [[1, 1, 0], [1, 1, 1]]
        assert world.observation["action_mask"][0].tolist() == legal
    algorithms = (SMALL, VDN(**REPLAY))
    for algorithm in algorithms if masks == "info" else algorithms[1:]:
        result = fragmenta.train(algorithm, env)
        for deterministic in (True, False):
            assert evaluate(algorithm, env, result.params, 4, deterministic=deterministic).unfinished == 0


REPLAY: dict[str, Any] = {"num_envs": 6, "batch_size": 6, "learning_starts": 6, "hidden": (8,), "total_steps": 48}
LEARNERS: dict[str, Any] = {
    "ippo": IPPO(**dataclasses.asdict(SMALL)),
    "vdn": VDN(**REPLAY),
    "qmix": QMIX(mixing=8, hypernetwork=8, **REPLAY),
    "maddpg": MADDPG(**REPLAY),
}
TEAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "unlike": ("unlike_team", {"masks": "info"}),
    "spread": ("mpe/simple_spread_v3", {}),
    "continuous": ("mpe/simple_spread_v3", {"continuous_actions": True}),
}


@pytest.mark.brief("ippo-continuous", "qmix-unlike")
@pytest.mark.parametrize(
    ("name", "team_name"),
    [
        pytest.param(name, team_name, id=f"{name}-{team_name}")
        for team_name in TEAMS
        for name in (LEARNERS if team_name != "continuous" else ("ippo", "maddpg"))
    ],
)
def test_all_algorithms_for_teams_train(name: str, team_name: str) -> None:
    package, arguments = TEAMS[team_name]
    if package.startswith("mpe"):
        pytest.importorskip("mpe2")
    options = EnvOptions(env_args=arguments, env_mode="processes", env_workers=1)
    algorithm, env = LEARNERS[name], make(f"pettingzoo:{package}", options)
    assert isinstance(env.action_space, Box if team_name == "continuous" else Discrete)
    result = fragmenta.train(algorithm, env)
    assert result.summary["total_steps"] >= 48
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.params))


def module(**attributes: Any) -> types.ModuleType:
    result = types.ModuleType("made_up")
    result.__dict__.update(attributes)
    return result


@pytest.mark.parametrize(
    ("name", "arguments", "stack", "message"),
    [
        ("unlike_team", {"mixed": True}, 1, "different actions of kind Box and Discrete: a team needs Discrete ones"),
        ("vanishing_team", {}, 4, "leave out stack"),
        ("no_such_module", {}, 1, "cannot load 'pettingzoo:no_such_module'"),
        ("classic/no_such_game_v0", {}, 1, "cannot load 'pettingzoo:classic/no_such_game_v0'"),
        ("made_up", {}, 1, "no parallel_env, so its agents take turns"),
    ],
)
def test_unusable_environments_are_refused_in_one_line(
    name: str, arguments: dict, stack: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "made_up", module())
    with pytest.raises(UnusableError, match=message) as error:
        PettingZooEnv(Spec("pettingzoo", name, arguments, stack=stack))
    assert "\n" not in str(error.value)


def test_a_missing_dependency_of_an_environment_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    for loaded in [name for name in sys.modules if name.startswith("pettingzoo.classic")]:
        monkeypatch.delitem(sys.modules, loaded)
    with pytest.raises(UnusableError, match=r"needs pygame: pip install 'pettingzoo\[classic\]'"):
        PettingZooEnv(Spec("pettingzoo", "classic/rps_v2"))
    monkeypatch.setitem(MOVED, "mpe", "no_such_package")
    with pytest.raises(UnusableError, match=r"needs no_such_package: pip install 'fragmenta\[pettingzoo\]'"):
        PettingZooEnv(Spec("pettingzoo", "mpe/simple_spread_v3"))


def test_an_environment_of_the_package_that_has_left_pettingzoo() -> None:
    pytest.importorskip("mpe2")
    env = make("pettingzoo:mpe/simple_spread_v3")
    assert (env.team_size, env.action_space.n) == (3, 5)


@pytest.mark.full
def test_an_environment_that_pettingzoo_ships() -> None:
    pytest.importorskip("pygame")
    env = make("pettingzoo:classic/rps_v2", EnvOptions(env_mode="processes"))  # here, its warnings would be errors
    assert isinstance(env, HostEnvironment)
    assert (env.team_size, env.action_space.n) == (2, 3)
    with env.opened():
        world = env.reset(keys_by_index(jax.random.key(0), 3))
        _, transition = env.step(world, jnp.asarray([[0, 1]] * 3, jnp.int32))
        assert transition.reward.tolist() == [[-1.0, 1.0]] * 3, "paper beats rock"


OBSERVATIONS = {
    "missing": "returned observations without 'agent_1', which is active (returned: agent_0)",
    "key": "returned observations without 'agent_1', which is active (returned: agent_0, agent_7)",
    "shape": "returned observation of 'agent_1' of shape (4,), expected (3,)",
    "every shape": "returned observation of shape (2, 4), expected (2, 3)",
    "dtype": "returned observation of 'agent_1' of type <U1, expected float32",
    "nothing": "returned None as its observation of 'agent_1', expected Box(-10.0, 10.0, (3,), float32)",
    "no dictionary": "returned an array of shape (3,) as its observations, expected a dictionary by agent",
    "nan": "returned NaN in its observation, expected numbers",
}
REWARDS = {
    "no reward": "returned rewards without 'agent_1', which is active",
    "reward": "returned reward None of 'agent_1', expected a number",
    "rewards": "returned None as its rewards, expected a dictionary by agent",
    "result": "returned 2 values, expected observations, rewards, terminations, truncations, infos",
}
WRONG = [
    *(("step", 3, wrong, line) for wrong, line in {**OBSERVATIONS, **REWARDS}.items()),
    *(("reset", 0, wrong, line) for wrong, line in OBSERVATIONS.items()),
    ("reset", 0, "result", "returned NoneType, expected observations, infos"),
]


def step_unsound_team(wrong: str, at: int) -> None:
    environments = Pool(Spec("pettingzoo", "unsound_team", {"wrong": wrong, "at": at}), PoolOptions(mode="serial"))
    try:
        environments.reset(np.arange(2))
        for _ in range(5):
            environments.step(0, np.zeros((2, 2), np.int32))
    finally:
        environments.close()


@pytest.mark.brief("step-*")
@pytest.mark.parametrize(("where", "at", "wrong", "line"), WRONG)
def test_what_cannot_be_used_is_one_line_without_our_traceback(where: str, at: int, wrong: str, line: str) -> None:
    with pytest.raises(EnvironmentFaultError) as caught:
        step_unsound_team(wrong, at)
    assert str(caught.value).startswith(f"environment 0 of pettingzoo:unsound_team, step {at}: {where} {line}")
    assert caught.value.trace == ""
