"""Programs with collectives that share devices never deadlock."""

import threading
from collections.abc import Callable
from typing import Any

import jax
import pytest

from fragmenta import make
from fragmenta.engines import LocalEngine
from fragmenta.worker.backends.xla import Site
from fragmenta.worker.deploy import Deployment
from fragmenta.worker.turns import take_turns
from helpers import assert_same, cpu_cluster, initial_state, plain, planned
from triplets import Triplets, side_by_side

ITERATIONS = 200


@pytest.mark.full
def test_many_launches_do_not_deadlock() -> None:
    algorithm, env = Triplets(num_envs=16), make("CartPole-v1")
    plan = planned(algorithm, env, side_by_side, cpu_cluster(8, 8), merge=False)
    leaves, structure = jax.tree.flatten(initial_state(algorithm, env))
    with LocalEngine(plan, deadline=10) as engine:
        engine.begin(leaves)
        for _ in range(ITERATIONS):
            assert len(list(engine.run(1))) == 1  # a separate launch each time
        state = jax.tree.unflatten(structure, engine.state())
    assert_same(plain(algorithm, env, ITERATIONS)[0], state, 1e-5)


def run_both(devices: tuple[slice, slice], program: Callable[[], Any]) -> None:
    """Two deployments on these devices launch the same program, each from its own thread."""
    sites = [Site(tuple(jax.devices()[part])) for part in devices]
    nothing: Any = None
    deployments = take_turns([Deployment(nothing, site, {}, {}, program, {}) for site in sites])
    threads = [threading.Thread(target=deployment.burst) for deployment in deployments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_launches_over_shared_devices_are_serialised() -> None:
    inside = threading.Semaphore(1)
    alone = []

    def program() -> None:
        alone.append(inside.acquire(blocking=False))
        threading.Event().wait(0.2)  # gives the other one time to enter, if it may
        inside.release()

    run_both((slice(0, 2), slice(1, 3)), program)
    assert alone == [True, True]


@pytest.mark.parametrize("devices", [(slice(0, 2), slice(2, 4)), (slice(0, 1), slice(0, 2))])
def test_launches_that_cannot_deadlock_do_not_wait(devices: tuple[slice, slice]) -> None:
    barrier = threading.Barrier(2)
    run_both(devices, lambda: barrier.wait(timeout=10))
    assert not barrier.broken
