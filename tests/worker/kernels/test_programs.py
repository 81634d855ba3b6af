"""Whole iterations of training with kernels in them end in the same state as under XLA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragmenta
from fragmenta.algorithms import Algorithm
from fragmenta.algorithms.ppo import Sample
from fragmenta.engines.hardware import local_cluster
from fragmenta.worker.backends.kernel import Rewritten, segment_with_kernels, with_kernels
from fragmenta.worker.backends.xla import raw_function, site, spec_of, to_raw
from fragmenta.worker.kernels.source import Shape
from fragmenta.worker.optimize import optimize
from fragmenta.worker.steps import segments
from kernel_launchers import WAYS, launcher, needs_compiler


def iteration(
    name: str, algorithm: Algorithm, way: str, shape: Shape | None = None
) -> tuple[Rewritten, list[jax.Array], list[jax.Array]]:
    """An iteration with kernels, its results and those of XLA."""
    env = fragmenta.make(name)
    plan = fragmenta.project(fragmenta.trace(algorithm, env), "fused", local_cluster())
    (program,) = plan.programs
    schedule, where = optimize(program, {program.fragment.name: 1}), site(("cpu:0",))
    (segment,) = segments(schedule.steps)
    leaves = jax.tree.leaves(jax.jit(lambda key: algorithm.init(env, key))(jax.random.key(0)))
    known = {value.id: to_raw(leaf) for value, leaf in zip(plan.graph.state_inputs, leaves, strict=True)}
    arrays = [known.get(key, jnp.int32(0)) for key in segment.inputs]
    specs = {key: spec_of(schedule, where, key) for key in schedule.shapes}
    rewritten = segment_with_kernels(segment, schedule, where, specs, launcher(way, shape))
    expected = jax.jit(raw_function(segment, schedule, where))(*arrays)
    return rewritten, list(jax.jit(rewritten.function)(*arrays)), list(expected)


def close(actual: list[jax.Array], expected: list[jax.Array], tolerance: float) -> None:
    for i, (a, b) in enumerate(zip(actual, expected, strict=True)):
        scale = max(1.0, float(np.max(np.abs(np.nan_to_num(np.asarray(b, np.float64)))))) if b.size else 1.0
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), tolerance, tolerance * scale, err_msg=f"result {i}")


@pytest.mark.brief("CartPole-v1-*", "Pendulum-v1-interpreted")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0"])
def test_ppo(name: str, way: str) -> None:
    algorithm = fragmenta.PPO(num_envs=40, horizon=16, minibatches=4, epochs=2, total_steps=10**6)
    rewritten, actual, expected = iteration(name, algorithm, way)
    # the rollout, the values of all steps, the advantages, and the gradients of policy and value
    assert len(rewritten.report.kernels) == 5, rewritten.report
    assert any("sort" in reason or "threefry" in reason for reason in rewritten.report.reasons)
    close(actual, expected, 2e-4)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rows", [(8, 24), (3, 37)])
def test_gradients_of_a_loss(way: str, rows: tuple[int, int]) -> None:
    rewritten, leaves, gradient = _gradient("float32", rows, launcher(way))
    assert len(rewritten.report.kernels) == 2, rewritten.report
    close(rewritten.function(*leaves), gradient(*leaves), 1e-5)


@needs_compiler
@pytest.mark.parametrize(("compute", "tolerance"), [("float32", 4e-3), ("bfloat16", 5e-2)])
@pytest.mark.parametrize("warps", [1, 2, 4, 8])
def test_the_precision_of_tensor_cores(compute: str, tolerance: float, warps: int) -> None:
    rewritten, leaves, _ = _gradient(compute, (3, 70), launcher("emulated", Shape(warps=warps, blocks=2)))
    exact = _gradient("float32", (3, 70), launcher("interpreted"))[2](*leaves)
    for actual, expected in zip(rewritten.function(*leaves), exact, strict=True):
        error = np.max(np.abs(np.asarray(actual) - np.asarray(expected)))
        assert error <= tolerance * max(np.max(np.abs(np.asarray(expected))), 1e-3)


@needs_compiler
def test_exact_products_keep_all_bits() -> None:
    sizes = {"num_envs": 16, "horizon": 8, "minibatches": 2, "epochs": 1, "total_steps": 10**6}

    def error(compute: str) -> float:
        algorithm = fragmenta.PPO(compute=compute, **sizes)
        _, actual, expected = iteration("CartPole-v1", algorithm, "emulated", Shape())
        numbers = [(np.asarray(a, float), np.asarray(b, float)) for a, b in zip(actual, expected, strict=True)]
        return max(np.max(np.abs(a - b)) for a, b in numbers if a.size and np.all(np.isfinite(b)))

    assert 4 * error("float32-exact") < error("float32")


def _gradient(compute, rows, launch):
    env = fragmenta.make("CartPole-v1")
    algorithm = fragmenta.PPO(num_envs=rows[1], compute=compute, total_steps=10**6)
    state = algorithm.init(env, jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), 5)
    numbers = [jax.random.normal(key, rows) for key in keys[:3]]
    observation = jax.random.normal(keys[3], (*rows, 4))
    batch = Sample(observation, jax.random.randint(keys[4], rows, 0, 2), -jnp.abs(numbers[0]), *numbers[1:])
    leaves, structure = jax.tree.flatten((state.learner.params, batch))

    def gradient(*leaves):
        params, batch = jax.tree.unflatten(structure, leaves)
        return tuple(jax.tree.leaves(algorithm.gradient(env, params, batch)))

    return with_kernels(gradient, leaves, launch), leaves, jax.jit(gradient)
