"""Programs that share devices, each with collectives in it, never wait for each other."""

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


def test_no_launch_is_stuck_however_many_there_are() -> None:
    algorithm, env = Triplets(num_envs=16), make("CartPole-v1")
    plan = planned(algorithm, env, side_by_side, cpu_cluster(8, 8), merge=False)
    leaves, structure = jax.tree.flatten(initial_state(algorithm, env))
    with LocalEngine(plan, deadline=10) as engine:
        engine.begin(leaves)
        for _ in range(ITERATIONS):
            assert len(list(engine.run(1))) == 1  # a launch of its own each time
        found = jax.tree.unflatten(structure, engine.state())
    assert_same(plain(algorithm, env, ITERATIONS)[0], found, 1e-5)


def run_both(devices: tuple[slice, slice], program: Callable[[], Any]) -> None:
    """Two deployments on these devices launch the same program, each from a thread of its own."""
    sites = [Site(tuple(jax.devices()[some])) for some in devices]
    nothing: Any = None
    made = take_turns([Deployment(nothing, site, {}, {}, program) for site in sites])
    threads = [threading.Thread(target=deployment.launch) for deployment in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_launches_over_shared_devices_come_one_after_the_other() -> None:
    inside = threading.Semaphore(1)
    alone = []

    def program() -> None:
        alone.append(inside.acquire(blocking=False))
        threading.Event().wait(0.2)  # the other one has time to come in, if it may
        inside.release()

    run_both((slice(0, 2), slice(1, 3)), program)
    assert alone == [True, True]


@pytest.mark.parametrize("devices", [(slice(0, 2), slice(2, 4)), (slice(0, 1), slice(0, 2))])
def test_those_that_cannot_get_in_each_others_way_do_not_wait(devices: tuple[slice, slice]) -> None:
    both = threading.Barrier(2)
    run_both(devices, lambda: both.wait(timeout=10))
    assert not both.broken
