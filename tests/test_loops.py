"""Loops written without replicas in mind compute the same as the plain program under every synchronous policy."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fragmenta.tracing.iteration import iteration
from helpers import assert_same, cpu_cluster, plain, planned, run_plan
from loops import LOOPS, WITH_GRADIENTS
from processes import apart, run_apart

POLICIES = ("fused", "single_learner_coarse", "single_learner_fine", "multi_learner", "central", "environments")
ITERATIONS = 3
SHORT: dict[str, tuple[str, ...]] = {
    "dqn": ("fused",),
    "reinforce": ("fused",),
    "self_play": ("single_learner_fine",),
    "branching": ("single_learner_coarse",),
}
"""Loops of `make test`, with two replicas; `make full` runs all of them under every distribution policy."""
SHORT_APART = (("dqn_rings", "multi_learner"),)
"""What `make test` runs with processes; few, because each process takes seconds to start."""


def policies_of(loop: str) -> tuple[str, ...]:
    if loop == "reinforce":  # it acts and steps in one while_loop, which is never split
        return tuple(policy for policy in POLICIES[:4] if policy != "single_learner_fine")
    return tuple(policy for policy in POLICIES if policy != "central" or loop in WITH_GRADIENTS)


@cache
def expected(loop: str) -> tuple[Any, list[dict[str, Any]]]:
    """The results of the plain program, which must be finite for the comparison to be meaningful."""
    results = plain(*LOOPS[loop], ITERATIONS)
    for path, leaf in jax.tree_util.tree_leaves_with_path(results):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            assert np.isfinite(np.asarray(leaf, np.float32)).all(), jax.tree_util.keystr(path)
    return results


def matrix() -> list[Any]:
    """Every loop under every distribution policy that can place it, with 2 and 4 replicas."""
    return [
        pytest.param(
            *(loop, policy, replicas),
            marks=() if replicas == 2 and policy in SHORT.get(loop, ()) else pytest.mark.full,
            id=f"{loop}-{policy}-{replicas}",
        )
        for loop in LOOPS
        for policy in policies_of(loop)
        for replicas in (2, 4)
    ]


@pytest.mark.parametrize(("loop", "policy", "replicas"), matrix())
def test_every_policy_equals_the_plain_loop(loop: str, policy: str, replicas: int) -> None:
    expected_state, expected_metrics = expected(loop)
    algorithm, env = LOOPS[loop]
    plan = planned(algorithm, env, policy, cpu_cluster(8, replicas), merge=False)
    state, metrics = run_plan(plan, algorithm, env, ITERATIONS)
    assert_same(expected_state, state, 1e-5)
    assert_same(expected_metrics, metrics, 1e-5, floor=1.0)


@pytest.mark.full
@pytest.mark.parametrize("loop", LOOPS)
def test_fragments_on_one_device_are_merged_into_the_plain_loop(loop: str) -> None:
    expected_state, expected_metrics = expected(loop)
    algorithm, env = LOOPS[loop]
    plan = planned(algorithm, env, "single_learner_coarse", cpu_cluster(1, 2), merge=True)
    state, metrics = run_plan(plan, algorithm, env, ITERATIONS)
    assert_same(expected_state, state, 1e-5)
    assert_same(expected_metrics, metrics, 1e-5, floor=1.0)


def matrix_apart() -> list[Any]:
    """Every loop under every distribution policy that can place it, in processes, with 2 replicas."""
    return [
        pytest.param(loop, policy, marks=() if (loop, policy) in SHORT_APART else pytest.mark.full)
        for loop in LOOPS
        for policy in policies_of(loop)
    ]


@pytest.mark.full
@pytest.mark.parametrize(("loop", "policy"), matrix_apart())
def test_processes_equal_the_plain_loop(loop: str, policy: str) -> None:
    expected_state, expected_metrics = expected(loop)
    algorithm, env = LOOPS[loop]
    state, metrics = run_apart(apart(algorithm, env, policy, 2), "processes", ITERATIONS)
    assert_same(expected_state, state, 1e-5)
    assert_same(expected_metrics, metrics, 1e-4, floor=0.1)


def perturbed(state: Any, seed: int) -> Any:
    """The state with every float32 perturbed in about its last digit."""
    random = np.random.default_rng(seed)

    def nudge(leaf: Any) -> Any:
        return leaf * (1 + 1e-7 * random.standard_normal(leaf.shape).astype(np.float32))

    return jax.tree.map(lambda leaf: nudge(leaf) if leaf.dtype == jnp.float32 else leaf, state)


@pytest.mark.full
@pytest.mark.parametrize("loop", LOOPS)
def test_loops_do_not_amplify_rounding(loop: str) -> None:
    """Otherwise even a correct split program could differ by more than 1e-5."""
    algorithm, env = LOOPS[loop]
    iterate = jax.jit(iteration(algorithm, env))
    state = perturbed(jax.jit(lambda key: algorithm.init(env, key))(jax.random.key(0)), seed=1)
    for _ in range(ITERATIONS):
        state, _ = iterate(state)
    assert_same(expected(loop)[0], state, 1e-5)
