"""How many replicas step environments on the host if the user does not say."""

import pytest

from fragmenta import PPO, EnvOptions, RunOptions, make, train
from fragmenta.policies import Cluster
from fragmenta.training.defaults import default_replicas, replicas_apart


@pytest.mark.parametrize(
    ("step_seconds", "most", "num_envs", "expected"),
    [(5e-6, 2, 64, 2), (5e-3, 16, 64, 16), (5e-3, 16, 12, 12), (0.0, 4, 6, 3), (5e-6, 8, 7, 7), (5e-6, 4, 7, 1)],
)
def test_on_a_cpu_there_is_one_per_core_if_that_divides_the_environments(
    step_seconds: float, most: int, num_envs: int, expected: int
) -> None:
    assert replicas_apart(step_seconds, most, num_envs, "cpu")[0] == expected


@pytest.mark.parametrize(
    ("step_seconds", "most", "num_envs", "expected"),
    [
        (5e-6, 16, 64, 1),  # 0.3 ms in all: a second process costs as much as it saves
        (25e-6, 16, 64, 2),  # 1.6 ms
        (1e-3, 16, 32, 8),  # 32 ms: the root says ten, and eight divide the environments
        (50e-3, 16, 64, 16),  # as many as there are cores
        (50e-3, 16, 7, 7),
        (0.0, 16, 64, 2),  # not measured
        (0.0, 16, 7, 1),
    ],
)
def test_on_a_gpu_there_are_as_many_as_the_step_time_pays_for(
    step_seconds: float, most: int, num_envs: int, expected: int
) -> None:
    count, why = replicas_apart(step_seconds, most, num_envs, "gpu")
    assert count == expected
    assert why.startswith(f"{expected} replica")
    assert why.endswith("take turns on the GPU")
    assert ("a step of all takes about" in why) == (step_seconds > 0)


@pytest.mark.parametrize(("name", "at_least", "at_most"), [("patient_envs:Patient", 4, 8), ("host_envs:Clipped", 1, 2)])
def test_the_measured_step_and_the_device_of_the_cluster_decide(
    name: str, at_least: int, at_most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fragmenta.training.defaults.cores", lambda: 16)
    algorithm, env = PPO(num_envs=8), make(name)  # a step of all takes at least 8 ms, or well below a millisecond
    gpu, cpu = (Cluster((device,), apart=True) for device in ("gpu:0", "cpu:0"))
    assert at_least <= default_replicas(algorithm, env, "single_learner_coarse", gpu)[0] <= at_most
    assert default_replicas(algorithm, env, "single_learner_coarse", cpu)[0] == 8


@pytest.mark.full
def test_the_plan_says_why(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fragmenta.training.defaults.cores", lambda: 2)
    algorithm = PPO(num_envs=4, horizon=8, hidden=(8,), epochs=1, minibatches=2, total_steps=64)
    options = RunOptions(env=EnvOptions(env_mode="serial"))
    train(algorithm, "gymnasium:CartPole-v1", engine="processes", options=options)
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "environments: " in line]
    assert "4 of gymnasium:CartPole-v1, on the host, in the processes that step them, " in line
    assert line.rstrip().endswith(", 2 replicas, one per core")
