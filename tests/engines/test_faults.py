"""A fragment that fails or waits too long ends the run at once with the reason; nothing is left behind."""

import dataclasses
import threading
import time
import traceback
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragmenta
from fragmenta import Algorithm, Cluster, Environment, Fragment, stage
from fragmenta.rl import keys_by_index
from fragmenta.stage import per_environment
from fragmenta.worker.execute import DeadlineError


class BrokenSensorError(RuntimeError):
    pass


@dataclasses.dataclass(frozen=True)
class Fragile(Algorithm):
    """Acts and learns; a Python callback in `act` fails at the fourth iteration."""

    misbehave: str = "raise"

    def init(self, env: Environment, key: jax.Array) -> dict[str, Any]:
        world = env.reset(keys_by_index(key, self.num_envs))
        return {"world": world, "weights": jnp.zeros(()), "count": jnp.zeros(self.num_envs, jnp.int32)}

    def params(self, state: dict[str, Any]) -> Any:
        return state["weights"]

    @stage
    def act(self, weights: jax.Array, count: jax.Array) -> jax.Array:
        @per_environment
        def read_sensor(count: np.ndarray) -> np.ndarray:
            if count[0] == 3:
                if self.misbehave == "raise":
                    raise BrokenSensorError("the sensor is broken")
                time.sleep(4)
            return np.zeros(count.shape, np.int32)

        return jax.pure_callback(read_sensor, jax.ShapeDtypeStruct(count.shape, jnp.int32), count)

    @stage
    def learn(self, weights: jax.Array, action: jax.Array, reward: jax.Array) -> jax.Array:
        return weights + jnp.sum(reward) + jnp.sum(action)

    def iterate(self, env: Environment, state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, jax.Array]]:
        action = self.act(state["weights"], state["count"])
        world, transition = env.step(state["world"], action)
        weights = self.learn(state["weights"], action, transition.reward)
        return {"world": world, "weights": weights, "count": state["count"] + 1}, {"weights": weights}


def apart(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    return [
        Fragment("actor", ("act", "step"), ("cpu:1", "cpu:2"), replicas=2, axis="envs"),
        Fragment("learner", ("learn",), ("cpu:0",)),
    ]


CLUSTER = Cluster(("cpu:0", "cpu:1", "cpu:2"))


def test_a_fragment_that_raises_ends_the_run_with_its_own_traceback() -> None:
    begin = time.monotonic()
    with pytest.raises(Exception, match="the sensor is broken") as caught:
        fragmenta.train(Fragile(num_envs=4), "CartPole-v1", policy=apart, cluster=CLUSTER, total_steps=4_000)
    text = "".join(traceback.format_exception(caught.value))
    assert "BrokenSensorError" in text
    assert "in read_sensor" in text, "the user's own line must be in the traceback"
    assert "raised in fragment 'actor', replica" in text
    assert "of 2" in text
    assert not [t for t in threading.enumerate() if t.name.startswith("fragmenta-actor")]
    assert time.monotonic() - begin < 30


def test_the_run_ends_within_two_seconds_of_the_failure() -> None:
    from fragmenta.engines import LocalEngine
    from helpers import initial_state, planned

    algorithm, env = Fragile(num_envs=4), fragmenta.make("CartPole-v1")
    plan = planned(algorithm, env, apart, CLUSTER, merge=False)
    with LocalEngine(plan) as engine:
        engine.begin(jax.tree.leaves(initial_state(algorithm, env)))
        begin = time.monotonic()  # compiled already: four quick iterations, then the failure
        with pytest.raises(Exception, match="the sensor is broken"):
            list(engine.run(1_000))
    assert time.monotonic() - begin < 2.5


@pytest.mark.full
def test_a_wait_past_its_deadline_names_the_waiter_the_value_and_the_sender(capfd: pytest.CaptureFixture[str]) -> None:
    slow = Fragile(num_envs=4, misbehave="sleep")
    with pytest.raises(DeadlineError) as caught:
        fragmenta.train(
            slow,
            "CartPole-v1",
            policy=apart,
            cluster=CLUSTER,
            total_steps=4_000,
            options=fragmenta.RunOptions(deadline=1.0),
        )
    message = str(caught.value)
    assert message.startswith(
        (
            "learner could not receive 'reward' f32[4] from actor[",
            "learner could not receive 'action' i32[4] from actor[",
        )
    ), message
    assert "within 1 s" in message
    assert "stacks of all threads" in capfd.readouterr().err
    deadline = time.monotonic() + 10  # the sleeping callback cannot be interrupted
    while time.monotonic() < deadline and any(t.name.startswith("fragmenta-actor") for t in threading.enumerate()):
        time.sleep(0.1)


@pytest.mark.full
def test_a_run_that_is_left_early_leaves_no_thread() -> None:
    from fragmenta.engines import LocalEngine
    from helpers import initial_state, planned

    algorithm, env = fragmenta.PPO(num_envs=4, horizon=8, hidden=(8,)), fragmenta.make("CartPole-v1")
    plan = planned(algorithm, env, "single_learner_fine", Cluster(("cpu:0", "cpu:1")), merge=True)
    with LocalEngine(plan) as engine:
        engine.begin(jax.tree.leaves(initial_state(algorithm, env)))
        reports = engine.run(1_000)
        for _ in range(3):
            next(reports)
    assert not [t for t in threading.enumerate() if t.name.startswith("fragmenta-") and "compile" not in t.name]


@pytest.mark.full
def test_the_initial_state_is_not_consumed() -> None:
    from helpers import initial_state, planned, run_plan

    algorithm, env = fragmenta.PPO(num_envs=4, horizon=8, hidden=(8,)), fragmenta.make("CartPole-v1")
    state = initial_state(algorithm, env)
    plan = planned(algorithm, env, "fused", Cluster(("cpu:0",)), merge=True)
    run_plan(plan, algorithm, env, 2)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(state.world.state))
