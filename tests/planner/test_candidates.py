"""What the planner compares: each program once, the simplest way to it first."""

from collections.abc import Sequence

import pytest

from fragmenta import PPO, Cluster, make
from fragmenta.envs import EnvOptions
from fragmenta.planner import candidates as module
from fragmenta.planner.candidates import Candidate, Space, candidates, env_modes, identity_of
from fragmenta.policies import POLICIES
from fragmenta.tracing.trace import trace

SMALL = PPO(num_envs=4, horizon=8, hidden=(8,), epochs=1, minibatches=2)


def found(space: Space, env_name: str = "CartPole-v1") -> list[Candidate]:
    env = make(env_name)
    return list(candidates(SMALL, env, trace(SMALL, env), space))


def on(count: int) -> Sequence[tuple[str, bool, Cluster]]:
    return (("local", False, Cluster(tuple(f"cpu:{i}" for i in range(count)))),)


def test_each_program_is_a_candidate_once() -> None:
    options = found(Space(tuple(POLICIES), tuple(on(2)), lags=(0, 1), merges=(True, False)))
    assert len({identity_of(option) for option in options}) == len(options)
    assert options[0].description == "fused x1"


def test_what_shares_a_device_is_also_compared_unmerged() -> None:
    options = found(Space(("single_learner_coarse",), tuple(on(1)), merges=(True, False)))
    assert [option.description for option in options] == [
        "single_learner_coarse x1",
        "single_learner_coarse x1 no-merge",
    ]
    assert len(options[1].plan.programs) > len(options[0].plan.programs)
    assert [option.merge for option in found(Space(("fused",), tuple(on(1)), merges=(True, False)))] == [True]


def test_a_part_of_the_devices_is_compared_too() -> None:
    options = found(Space(("single_learner_coarse",), tuple(on(4)), replicas=(2,)))
    used = {tuple(option.plan["actor"].fragment.devices) for option in options if len(option.plan.programs) == 2}
    assert ("cpu:0", "cpu:1") in used, "an actor beside the learner"
    assert ("cpu:1", "cpu:2") in used, "the learner apart"


def test_environments_on_the_host_are_stepped_in_each_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cores", lambda: 2)
    env = make("gymnasium:CartPole-v1")
    assert env_modes(env) == ("serial", "threads", "processes")
    options = found(Space(("multi_learner",), tuple(on(1)), replicas=(1,), env_modes=env_modes(env)), env.title)
    assert [option.env_mode for option in options] == ["serial", "threads", "processes"]
    assert [option.description for option in options][1] == "multi_learner x1 env-mode threads"


def test_ways_to_step_environments_that_the_user_chose_stay() -> None:
    assert env_modes(make("gymnasium:CartPole-v1", EnvOptions(env_mode="threads"))) == (None,)
    assert env_modes(make("CartPole-v1")) == (None,)
