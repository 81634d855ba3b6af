"""The central test: every placement computes the same as the plain program."""

import dataclasses
from functools import cache
from typing import Any

import pytest

from fragmenta import (
    A2C,
    DDPG,
    DQN,
    IMPALA,
    IPPO,
    LSTMPPO,
    MADDPG,
    MAPPO,
    PPO,
    PQN,
    QMIX,
    R2D2,
    REINFORCE,
    SAC,
    TD3,
    VDN,
    DiscreteSAC,
    FastTD3,
    Fragment,
    RecurrentPPO,
    TransformerPPO,
    make,
)
from fragmenta.algorithms import ALGORITHMS
from fragmenta.envs.probes import ProbeTeam
from helpers import assert_same, cpu_cluster, plain, planned, run_plan
from odd_algorithm import Odd
from own_parts import Forbidden, Gelu, Leaky, pair, pair_of_dictionary, slow_adam, upside_down
from sights import Medley
from small_teams import AimingTeam, HintedTeam, RecallTeam, UnlikeTeam

POLICIES = ("fused", "single_learner_coarse", "single_learner_fine", "multi_learner", "central", "environments")
WITH_REPLAY = ("dqn", "sac", "td3", "ddpg", "fast_td3", "r2d2", "vdn", "qmix", "maddpg")
"""Cases, by how their names begin, that also run under `replay`."""
ITERATIONS = 10
FEW = {"num_envs": 8, "horizon": 4, "epochs": 2, "minibatches": 2, "hidden": (16,), "total_steps": 10_000}
REPLAY = {"num_envs": 8, "horizon": 2, "updates": 2, "batch_size": 16, "buffer_size": 128, "learning_starts": 16}
RAINBOW = {"dueling": True, "n_step": 3, "prioritized": True, "distribution": "c51", "noisy": True, "atoms": 5}
C51 = {"distribution": "c51", "atoms": 5, "value_range": (-1000.0, 0.0)}
SCHEDULE = ("entropy_cost=linear:0.01:0", "learning_rate=cosine:1e-3:0", "clip=linear:0.3:0.1")
CASES = {
    "ppo-cartpole": (PPO(num_envs=8, horizon=16, minibatches=4, total_steps=100_000, hidden=(16, 16)), "CartPole-v1"),
    "ppo-pendulum": (
        PPO(num_envs=8, horizon=16, minibatches=4, total_steps=100_000, hidden=(16, 16), clip_value=True),
        "Pendulum-v1",
    ),
    "a2c": (A2C(num_envs=8, hidden=(16,)), "CartPole-v1"),
    "impala": (IMPALA(num_envs=8, hidden=(16,)), "CartPole-v1"),
    "mappo-shared": (MAPPO(shared=True, **FEW), ProbeTeam(agents=8)),
    "ippo": (IPPO(shared=True, **FEW), ProbeTeam(agents=8)),
    "mappo-separate": (MAPPO(shared=False, **FEW), ProbeTeam(agents=8)),
    "ppo-normalized": (PPO(normalize_observations=True, normalize_rewards=True, **FEW), "Pendulum-v1"),
    "ppo-medley": (PPO(normalize_observations=True, **FEW), Medley()),
    "ppo-gru": (RecurrentPPO(memory=8, **FEW), "ProbeMemory"),
    "a2c-normalized": (
        A2C(num_envs=8, hidden=(16,), normalize_observations=True, normalize_rewards=True),
        "CartPole-v1",
    ),
    "dqn": (DQN(hidden=(16,), target_every=3, ladder=True, **REPLAY), "CartPole-v1"),
    "dqn-rainbow": (DQN(hidden=(16, 16), **REPLAY, **RAINBOW), "CartPole-v1"),
    "dqn-quantile": (DQN(hidden=(16,), distribution="quantile", atoms=5, **REPLAY), "Acrobot-v1"),
    "sac": (SAC(hidden=(16,), **REPLAY), "Pendulum-v1"),
    "pqn": (PQN(num_envs=8, horizon=8, hidden=(16,), epochs=2, minibatches=2), "CartPole-v1"),
    "sac-prioritized": (SAC(hidden=(16,), prioritized=True, n_step=2, **REPLAY), "Pendulum-v1"),
    "td3": (TD3(hidden=(16,), layer_norm=True, **REPLAY), "Pendulum-v1"),
    "ddpg": (DDPG(hidden=(16,), **REPLAY), "Pendulum-v1"),
    "fast_td3": (
        FastTD3(hidden=(16,), critic_hidden=(16,), atoms=5, value_range=(-1000.0, 0.0), **REPLAY),
        "Pendulum-v1",
    ),
    "td3-c51": (
        TD3(hidden=(16,), critic_hidden=(8,), normalize_observations=True, largest_noise=0.5, **C51, **REPLAY),
        "Pendulum-v1",
    ),
    "sac-quantile": (
        SAC(hidden=(16,), distribution="quantile", atoms=5, combine="mean", normalize_observations=True, **REPLAY),
        "Pendulum-v1",
    ),
    "mappo-unlike": (MAPPO(shared=False, **FEW), UnlikeTeam(agents=8)),
    "vdn": (VDN(hidden=(16,), target_every=3, n_step=2, **REPLAY), ProbeTeam(agents=8)),
    "qmix": (QMIX(hidden=(16,), mixing=8, hypernetwork=8, prioritized=True, **REPLAY), ProbeTeam(agents=8)),
    "qmix-separate": (QMIX(hidden=(16,), mixing=8, shared=False, **REPLAY), UnlikeTeam(agents=8)),
    "maddpg": (MADDPG(hidden=(16,), **REPLAY), UnlikeTeam(agents=8)),
    "maddpg-shared": (MADDPG(hidden=(16,), shared=True, critics=2, **REPLAY), AimingTeam(agents=8)),
    "r2d2": (R2D2(hidden=(16,), memory=8, burn_in=2, length=4, target_every=3, **REPLAY), "ProbeMemory"),
    "sac-discrete": (DiscreteSAC(hidden=(16,), **REPLAY), Forbidden()),
    "reinforce": (REINFORCE(num_envs=8, horizon=16, hidden=(16,)), "ProbeMemory"),
    "ppo-lstm": (LSTMPPO(memory=8, **FEW), "ProbeMemory"),
    "ppo-transformer": (TransformerPPO(memory=8, window=4, **FEW), "ProbeMemory"),
    "ppo-own": (
        PPO(network=Gelu, optimizer=slow_adam, schedule=SCHEDULE, reward_function=upside_down, **FEW),
        "Pendulum-v1",
    ),
    "ppo-masked": (PPO(critic_only=("best",), **FEW), Forbidden()),
    "dqn-masked": (DQN(hidden=(16,), network=pair_of_dictionary, optimizer="rmsprop", **REPLAY), Forbidden()),
    "sac-own": (SAC(hidden=(16,), network=pair, schedule=("tau=linear:0.01:0.1",), **REPLAY), "Pendulum-v1"),
    "a2c-gru": (A2C(num_envs=8, hidden=(16,), cell="gru", memory=8, normalize_observations=True), "ProbeMemory"),
    "impala-own-cell": (IMPALA(num_envs=8, hidden=(16,), cell=Leaky, memory=8), "ProbeMemory"),
    "reinforce-transformer": (
        REINFORCE(num_envs=8, horizon=16, hidden=(16,), cell="transformer", memory=8, window=4),
        "ProbeMemory",
    ),
    "pqn-lstm": (
        PQN(num_envs=8, horizon=8, hidden=(16,), epochs=2, minibatches=2, cell="lstm", memory=8),
        "ProbeMemory",
    ),
    "sac-fixed": (
        SAC(hidden=(16,), learn_temperature=False, schedule=("temperature=linear:1:0.1",), **REPLAY),
        "Pendulum-v1",
    ),
    "mappo-own": (
        MAPPO(network=pair, optimizer=slow_adam, critic_only=("hint",), reward_function=upside_down, **FEW),
        HintedTeam(agents=8),
    ),
    "mappo-own-separate": (MAPPO(shared=False, network=Gelu, schedule=SCHEDULE, **FEW), ProbeTeam(agents=8)),
    "ippo-continuous": (IPPO(shared=False, **FEW), AimingTeam(agents=8)),
    "ippo-gru": (IPPO(cell="gru", memory=8, **FEW), RecallTeam(agents=8)),
    "mappo-lstm-separate": (MAPPO(cell="lstm", memory=4, shared=False, **FEW), ProbeTeam(agents=8)),
    "qmix-own": (QMIX(hidden=(16,), mixing=8, network=pair, critic_only=("hint",), **REPLAY), HintedTeam(agents=8)),
    "maddpg-own": (MADDPG(hidden=(16,), network=pair, critic_only=("hint",), **REPLAY), HintedTeam(agents=8)),
    "odd": (Odd(num_envs=8), "CartPole-v1"),
}
FEW_POLICIES: dict[str, tuple[str, ...]] = {
    "ppo-pendulum": (),
    "a2c": (),
    "impala": (),
    "mappo-shared": ("environments",),
    "mappo-separate": (),
    "ippo": (),
    "mappo-unlike": (),
    "vdn": (),
    "qmix": ("environments",),
    "qmix-separate": (),
    "maddpg": (),
    "maddpg-shared": (),
    "ppo-normalized": (),
    "ppo-medley": (),
    "ppo-gru": (),
    "a2c-normalized": (),
    "dqn": ("fused",),
    "pqn": (),
    "dqn-rainbow": ("replay",),
    "dqn-quantile": (),
    "sac": (),
    "sac-prioritized": (),
    "td3": (),
    "ddpg": (),
    "fast_td3": (),
    "td3-c51": ("single_learner_coarse",),
    "sac-quantile": (),
    "r2d2": (),
    "sac-discrete": (),
    "reinforce": (),
    "ppo-lstm": (),
    "ppo-transformer": (),
    "ppo-own": (),
    "ppo-masked": ("single_learner_coarse",),
    "dqn-masked": (),
    "sac-own": (),
    "a2c-gru": ("single_learner_coarse",),
    "impala-own-cell": (),
    "reinforce-transformer": (),
    "pqn-lstm": (),
    "sac-fixed": (),
    "mappo-own": (),
    "mappo-own-separate": (),
    "ippo-continuous": (),
    "ippo-gru": (),
    "mappo-lstm-separate": (),
    "qmix-own": (),
    "maddpg-own": (),
    "odd": ("environments",),
}
"""Cases that `make test` runs under only these distribution policies, to save compile time."""


SHORT_LOOPS = ("dqn", "r2d2", "sac", "td3", "ddpg", "vdn", "qmix", "maddpg")
"""Cases whose loops are so short that XLA unrolls them, and rounds differently where they are split."""


TEAMS = ("mappo", "ippo", "vdn", "qmix", "maddpg")


def policies_for(case: str) -> tuple[str, ...]:
    """The synchronous distribution policies whose stages an algorithm has."""
    policies = tuple(policy for policy in POLICIES if (case, policy) != ("odd", "central"))
    return (*policies, "replay") if case.startswith(WITH_REPLAY) else policies


def devices_for(case: str, policy: str) -> int:
    """Eight devices if replicas communicate; otherwise three, because a program is compiled for every device."""
    talking = ("fused", "multi_learner", "central")
    if case.startswith(TEAMS):
        talking += ("environments",)
    return 8 if policy in talking else 3


@cache
def expected(case: str) -> tuple[Any, list[dict[str, Any]]]:
    algorithm, env = CASES[case]
    return plain(algorithm, make(env), ITERATIONS)


def compare(case: str, policy: Any, devices: int, replicas: int, merge: bool, bitwise: bool) -> None:
    algorithm, env = CASES[case][0], make(CASES[case][1])
    plan = planned(algorithm, env, policy, cpu_cluster(devices, replicas), merge)
    state, metrics = run_plan(plan, algorithm, env, ITERATIONS)
    expected_state, expected_metrics = expected(case)
    assert_same(expected_state, state, 0 if bitwise else 1e-5)
    # A metric can be a small difference of terms near one, so its tolerance is relative to one. Even if the state is
    # bitwise equal, a metric computed in another program than the gradients may differ in the last digit.
    assert_same(expected_metrics, metrics, 1e-6 if bitwise else 1e-5, floor=1.0)


def matrix() -> list[Any]:
    """Every algorithm under every distribution policy with 1, 2, 4 and 8 replicas; `make test` runs a part of it."""
    parameters = []
    for case in CASES:
        for policy in policies_for(case):
            for replicas in (1, 2, 4, 8):
                short = replicas == 2
                # These are the programs of `fused`, or with one agent those of `single_learner_fine`.
                short &= policy != "multi_learner"
                short &= policy != "environments" or case.startswith((*TEAMS, "odd"))
                short &= policy in FEW_POLICIES.get(case, POLICIES)
                marks = () if short else pytest.mark.full
                parameters.append(pytest.param(case, policy, replicas, marks=marks, id=f"{case}-{policy}-{replicas}"))
    return parameters


@pytest.mark.parametrize(("case", "policy", "replicas"), matrix())
def test_every_policy_equals_the_plain_program(case: str, policy: str, replicas: int) -> None:
    bitwise = replicas == 1 and not case.startswith(SHORT_LOOPS)
    compare(case, policy, devices_for(case, policy), replicas, merge=False, bitwise=bitwise)


def test_every_algorithm_is_among_the_cases() -> None:
    assert set(ALGORITHMS.values()) <= {type(algorithm) for algorithm, _ in CASES.values()}


DIVIDED = [
    ("dqn", 4, 2, 2),
    ("dqn-rainbow", 2, 4, 2),
    ("sac", 2, 4, 2),
    ("r2d2", 4, 1, 2),
    ("qmix", 2, 4, 4),
    ("td3", 1, 2, 1),
]
"""Actors, shards and learners."""


@pytest.mark.parametrize(
    ("case", "actors", "shards", "learners"),
    [pytest.param(*row, marks=() if i == 0 else pytest.mark.full) for i, row in enumerate(DIVIDED)],
)
def test_a_replay_with_other_numbers_of_actors_shards_and_learners(
    case: str, actors: int, shards: int, learners: int
) -> None:
    cluster = dataclasses.replace(cpu_cluster(8, actors), shards=shards, learners=learners)
    algorithm, env = CASES[case][0], make(CASES[case][1])
    plan = planned(algorithm, env, "replay", cluster, merge=False)
    assert [program.fragment.replicas for program in plan.programs] == [actors, shards, learners]
    state, metrics = run_plan(plan, algorithm, env, ITERATIONS)
    assert_same(expected(case)[0], state, 1e-5)
    assert_same(expected(case)[1], metrics, 1e-5, floor=1.0)


def some(policies: tuple[str, ...], short: tuple[str, ...]) -> list[Any]:
    """All distribution policies; those that `make test` skips are marked `full`."""
    return [pytest.param(policy, marks=() if policy in short else pytest.mark.full) for policy in policies]


@pytest.mark.parametrize("policy", some(POLICIES, ("single_learner_coarse", "single_learner_fine")))
def test_fragments_on_one_device_are_merged_into_the_plain_program(policy: str) -> None:
    compare("ppo-cartpole", policy, 1, 1 if policy == "multi_learner" else 4, merge=True, bitwise=True)


@pytest.mark.parametrize("policy", some((*POLICIES[:3], "central"), ("single_learner_coarse",)))
@pytest.mark.parametrize("devices", [1, pytest.param(3, marks=pytest.mark.full)])
def test_replicas_that_share_devices(policy: str, devices: int) -> None:
    compare("ppo-cartpole", policy, devices, 2, merge=devices > 1, bitwise=False)


def learner_in_two(stages: tuple[str, ...], cluster: Any) -> list[Fragment]:
    """A user-defined distribution policy that places the stages inside `learn`."""
    return [
        Fragment("actor", ("act", "step"), ("cpu:0",)),
        Fragment("gradients", ("gradient",), ("cpu:1",)),
        Fragment("parameters", ("apply",), ("cpu:2",)),
    ]


@pytest.mark.full
def test_nested_stages_can_be_placed() -> None:
    algorithm, env = CASES["ppo-cartpole"][0], make("CartPole-v1")
    plan = planned(algorithm, env, learner_in_two, cpu_cluster(3, 1), merge=True)
    assert [program.fragment.stages for program in plan.programs] == [("act", "step"), ("gradient",), ("apply",)]
    state, _ = run_plan(plan, algorithm, env, 3)
    assert_same(plain(algorithm, env, 3)[0], state, 1e-5)


@pytest.mark.full
@pytest.mark.parametrize(("policy", "num_envs"), [("single_learner_coarse", 1_024), ("fused", 512)])
def test_networks_that_are_computed_another_way_for_many_rows(policy: str, num_envs: int) -> None:
    """1,024 rows are enough for the GPU kernel, 512 are not, so replicas trace a different program than the whole does.

    The rows are those of `act` with 1,024 environments, and those of a minibatch with 512 of them.
    """
    algorithm, env = PPO(num_envs=num_envs, horizon=8, epochs=1, hidden=(16, 16)), make("CartPole-v1")
    plan = planned(algorithm, env, policy, cpu_cluster(3, 2), merge=False)
    state, _ = run_plan(plan, algorithm, env, 2)
    assert_same(plain(algorithm, env, 2)[0], state, 1e-5)
