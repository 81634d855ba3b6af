"""What is compiled as one: when two of them do the same work, and how much that is."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from fragmenta import PPO, Cluster, make
from fragmenta.coordinator.plan import project
from fragmenta.planner.amounts import amounts
from fragmenta.planner.units import Unit, units
from fragmenta.tracing.trace import trace
from fragmenta.worker.optimize import optimize

SMALL = PPO(num_envs=4, horizon=8, hidden=(8,), epochs=1, minibatches=2)


def of(algorithm: PPO, policy: str = "fused", replicas: int = 1, is_apart: bool = False) -> list[Unit]:
    devices = tuple(f"cpu:{i}" for i in range(replicas))
    plan = project(trace(algorithm, make("CartPole-v1")), policy, Cluster(devices, replicas, apart=is_apart), False)
    counts = {program.fragment.name: program.replicas for program in plan.programs}
    return [unit for program in plan.programs for unit in units(optimize(program, counts), is_apart)]


def test_hyper_parameters_that_are_only_numbers_do_not_change_the_work() -> None:
    slower = dataclasses.replace(SMALL, learning_rate=1e-5, total_steps=77_000)
    assert [unit.identity for unit in of(SMALL)] == [unit.identity for unit in of(slower)]


@pytest.mark.parametrize("change", [{"num_envs": 8}, {"hidden": (16,)}, {"epochs": 2}, {"horizon": 16}])
def test_sizes_change_the_work(change: dict) -> None:
    assert of(SMALL)[0].identity != of(dataclasses.replace(SMALL, **change))[0].identity


def test_replicas_over_two_devices_are_other_work_than_one() -> None:
    assert of(SMALL)[0].identity != of(SMALL, replicas=2)[0].identity
    assert of(SMALL, replicas=2)[0].width == 2


def test_a_fragment_that_exchanges_nothing_runs_in_bursts() -> None:
    assert [unit.is_burst for unit in of(SMALL)] == [True]
    assert not any(unit.is_burst for unit in of(SMALL, "single_learner_coarse"))


def test_in_processes_replicas_that_exchange_values_are_members_of_one_program() -> None:
    alone, together = of(SMALL, replicas=2), of(SMALL, replicas=2, is_apart=True)
    assert (alone[0].members, max(unit.members for unit in together)) == (1, 2)


def test_amounts_of_a_product_in_a_loop() -> None:
    def program(a: jax.Array, b: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda carry, _: (jnp.tanh(carry @ b), None), a, length=5)[0]

    counted = amounts(jax.make_jaxpr(program)(jnp.zeros((4, 8)), jnp.zeros((8, 8))))
    assert counted.operations == 5 * 2
    assert counted.flops == 5 * (2 * 4 * 8 * 8 + 4 * 8)
    assert counted.bytes == 5 * 4 * (4 * 8 + 8 * 8 + 4 * 8)
