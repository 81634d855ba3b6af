"""The same environments, stepped in another number of lanes from some step on: their episodes go on."""

import numpy as np
import pytest

from fragmenta_host.catalogue import Spec
from fragmenta_host.options import PoolOptions
from fragmenta_host.pool import Pool
from fragmenta_host.step_arrays import StepArrays

COUNT = 4


def stepped(pool: Pool, parts: int, steps: int) -> list[StepArrays]:
    """The results of so many steps of all environments; an action that ends episodes soon."""
    size = COUNT // parts
    rows = [[pool.step(low, np.ones(size, np.int32)) for low in range(0, COUNT, size)] for _ in range(steps)]
    return [StepArrays(*(_joined(column) for column in zip(*lanes, strict=True))) for lanes in rows]


def _joined(parts: tuple) -> np.ndarray:
    return np.concatenate([part[0] if isinstance(part, list) else part for part in parts])


@pytest.mark.parametrize("mode", ["serial", "threads", "processes"])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (4, 1)])
def test_episodes_go_on_in_other_lanes(mode: str, before: int, after: int) -> None:
    results = []
    for parts in (before, after):
        pool = Pool(Spec("gymnasium", "CartPole-v1"), PoolOptions(mode=mode, workers=2))
        pool.open(before)
        try:
            pool.reset(np.arange(COUNT))
            first = stepped(pool, before, 13)
            assert pool.can_divide(parts)
            pool.divide(parts)
            results.append(first + stepped(pool, parts, 13))
        finally:
            pool.close()
    for same, divided in zip(*results, strict=True):
        for expected, array in zip(same, divided, strict=True):
            np.testing.assert_array_equal(array, expected)


def test_vectors_of_a_package_keep_their_lanes() -> None:
    pool = Pool(Spec("envpool", "CartPole-v1"))
    pool.open(2)
    try:
        pool.reset(np.arange(COUNT))
        assert pool.can_divide(2)
        assert not pool.can_divide(1)
    finally:
        pool.close()


def test_lanes_stay_until_all_know_of_a_restart() -> None:
    spec = Spec("faulty_envs", "Steady", {"fault": "exit", "share": 3, "at": 5, "marker": ""})
    pool = Pool(spec, PoolOptions(mode="processes", workers=1, restarts=1))
    pool.open(2)
    try:
        pool.reset(np.arange(1, COUNT + 1))
        for _ in range(4):
            pool.step(0, np.zeros(2, np.int32))
        for _ in range(5):  # in the last one, an environment of this lane ends the process of both
            pool.step(2, np.zeros(2, np.int32))
        assert pool.restarted == 1
        assert not pool.can_divide(1)
        assert pool.step(0, np.zeros(2, np.int32)).truncated.all()
        assert pool.can_divide(1)
    finally:
        pool.close()
