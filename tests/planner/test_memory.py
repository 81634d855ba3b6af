"""The memory that plans need, and candidates that do not fit."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import fragmenta
from fragmenta import Cluster
from fragmenta.envs import make
from fragmenta.planner.amounts import peak
from fragmenta.planner.candidates import candidate_of
from fragmenta.planner.memory import memory_of, shortage
from fragmenta.planner.predicting import predictor
from fragmenta.planner.profile import Profile
from fragmenta.policies.machine_files import read_machines
from fragmenta.policies.machines import MODELS, Machines

ALGORITHM = fragmenta.PPO(num_envs=64, horizon=8, hidden=(8,), epochs=1, minibatches=2)


def needs(policy: str, replicas: int, machines: Machines) -> tuple:
    env = make("CartPole-v1")
    graph = fragmenta.trace(ALGORITHM, "CartPole-v1")
    candidate = candidate_of(graph, policy, "local", Cluster(machines.devices, replicas, machines=machines), merge=True)
    assert candidate is not None
    predict = predictor(ALGORITHM, env, graph, Profile(), machines)
    return candidate.plan, memory_of(candidate.plan, predict.costs(candidate))


def test_the_peak_of_a_program_is_what_it_holds_at_once() -> None:
    def program(x: jax.Array) -> jax.Array:
        large = jnp.outer(x, x)
        return large.sum() + jnp.outer(x, x).sum()

    size = 4 * 100 * 100
    traced = jax.make_jaxpr(program)(jnp.ones(100))
    assert size <= peak(traced) < 2 * size, "the first product is dropped before the second is made"


def test_replicas_hold_parts_of_the_environments_and_all_of_the_parameters() -> None:
    machines = read_machines("dgx-h100")
    (_, (alone,)), (_, (shared,)) = needs("fused", 1, machines), needs("fused", 4, machines)
    assert alone.is_estimate
    assert shared.state < alone.state
    assert shared.working < alone.working
    leaves = jax.eval_shape(lambda key: ALGORITHM.init(make("CartPole-v1"), key), jax.random.key(0))
    assert alone.state >= sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(ALGORITHM.params(leaves)))


def test_what_is_too_large_is_said_by_device() -> None:
    machines = read_machines("dgx-h100")
    plan, memory = needs("single_learner_coarse", 2, machines)
    assert shortage(plan, memory, machines) is None
    (node,) = machines.nodes
    small = tuple(dataclasses.replace(device, memory=10_000) for device in node.devices)
    tiny = Machines((dataclasses.replace(node, devices=small),), machines.link)
    problem = shortage(plan, memory, tiny)
    assert problem is not None
    assert "on gpu:" in problem
    assert "which has 10.0 KB" in problem


def test_devices_of_a_cpu_share_the_memory_of_their_node() -> None:
    machines = read_machines("laptop")
    plan, memory = needs("single_learner_coarse", 2, machines)
    total = (
        memory[0].total * 2 + memory[1].total
        if memory[0].fragment == "actor"
        else memory[0].total + 2 * memory[1].total
    )
    (node,) = machines.nodes
    below = Machines((dataclasses.replace(node, memory=total - 1),), machines.link)
    assert shortage(plan, memory, Machines((dataclasses.replace(node, memory=total),), machines.link)) is None
    assert node.name in (shortage(plan, memory, below) or "")


@pytest.mark.parametrize("envs", [2_048, 65_536])
def test_estimates_for_a_gpu_are_near_what_was_measured_there(envs: int) -> None:
    """Whole training on an H200, as docs/scaling.md has it."""
    measured = {2_048: 47.0e6, 65_536: 125e6}[envs]
    machines = read_machines("dgx-h100")
    (node,) = machines.nodes
    alone = Machines((dataclasses.replace(node, devices=(MODELS["H200"],)),), machines.link)
    algorithm = fragmenta.PPO(num_envs=envs, minibatches=4)
    graph = fragmenta.trace(algorithm, "CartPole-v1")
    candidate = candidate_of(graph, "fused", "local", Cluster(("gpu:0",), machines=alone), merge=True)
    assert candidate is not None
    prediction = predictor(algorithm, make("CartPole-v1"), graph, Profile(), alone).predict(candidate)
    assert prediction.is_estimate
    assert prediction.steps_per_second == pytest.approx(measured, rel=0.1)
