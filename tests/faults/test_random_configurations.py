"""Any configuration trains or is refused in one line, and none hangs."""

import os

import hypothesis
import hypothesis.strategies as some
import pytest

import fragmenta
from fragmenta.policies import POLICIES

EXAMPLES = 150 if os.environ.get("CHAOS") else 4
COUNTS = some.integers(-1, 9)


@pytest.mark.timeout(3_600)
@hypothesis.settings(max_examples=EXAMPLES, deadline=None, derandomize=True)
@hypothesis.given(
    kind=some.sampled_from([fragmenta.PPO, fragmenta.A2C, fragmenta.IMPALA]),
    env=some.sampled_from(["CartPole-v1", "Pendulum-v1"]),
    policy=some.sampled_from(sorted(POLICIES)),
    num_envs=COUNTS,
    horizon=COUNTS,
    passes=some.tuples(COUNTS, COUNTS),
    hidden=some.sampled_from([(), (4,), (4, 4)]),
    replicas=some.integers(1, 4),
    devices=some.integers(1, 4),
    merge=some.booleans(),
    lag=some.integers(0, 1),
)
def test_random_configurations_train_or_are_refused(
    kind, env, policy, num_envs, horizon, passes, hidden, replicas, devices, merge, lag
) -> None:
    settings = {"num_envs": num_envs, "horizon": horizon, "hidden": hidden}
    if kind is fragmenta.PPO:
        settings |= {"epochs": passes[0], "minibatches": passes[1]}
    cluster = fragmenta.Cluster(tuple(f"cpu:{i}" for i in range(devices)), replicas, lag)
    message, result, steps = "", None, 0
    try:
        algorithm = kind(**settings)
        steps = max(1, 2 * algorithm.steps_per_iteration)
        result = fragmenta.train(
            algorithm,
            env,
            policy,
            cluster=cluster,
            total_steps=steps,
            options=fragmenta.RunOptions(merge=merge, deadline=60),
        )
    except fragmenta.ConfigError as refusal:
        message = str(refusal)
    assert len(message.splitlines()) == 1 if result is None else result.summary["total_steps"] >= steps
