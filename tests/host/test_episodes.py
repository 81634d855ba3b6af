"""Environments that move to another process in the middle of their episodes."""

import gymnasium
import numpy as np
import pytest

from fragmenta_host.catalogue import Spec, single_maker
from fragmenta_host.episodes import can_be_pickled, joined
from fragmenta_host.options import PoolOptions
from fragmenta_host.pool import Pool
from fragmenta_host.step_arrays import StepArrays

COUNT, STEPS = 4, 30


class Forgetful(gymnasium.utils.EzPickle, gymnasium.Env):
    """Counts steps; pickled, it is made anew."""

    def __init__(self) -> None:
        gymnasium.utils.EzPickle.__init__(self)
        self.observation_space = gymnasium.spaces.Box(0, np.inf, (1,), np.float64)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.steps = 0

    def reset(self, **_: object) -> tuple[np.ndarray, dict]:
        return np.array([float(self.steps)]), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps += 1
        return np.array([float(self.steps)]), 0.0, False, False, {}


def stepped(pool: Pool, low: int, count: int) -> list[StepArrays]:
    """An action that ends episodes soon."""
    return [pool.step(low, np.ones(count, np.int32)) for _ in range(STEPS)]


@pytest.mark.parametrize(("mode", "lanes"), [("serial", 1), ("threads", 2)])
def test_the_environments_of_several_pools_go_on_in_one(mode: str, lanes: int) -> None:
    spec = Spec("gymnasium", "CartPole-v1")
    whole, here = Pool(spec, PoolOptions(mode="serial")), Pool(spec, PoolOptions(mode=mode, workers=2))
    parts = [Pool(spec, PoolOptions(mode="serial")) for _ in range(2)]
    seeds, half = np.arange(COUNT), COUNT // 2
    try:
        whole.open(1)
        whole.reset(seeds)
        stepped(whole, 0, COUNT)
        for i, part in enumerate(parts):
            part.open_part(i * half, 1)
            part.reset(seeds[i * half : (i + 1) * half])
            stepped(part, i * half, half)
        assert here.can_take_over(COUNT, lanes)
        here.open(lanes)
        here.take_over(joined([part.episodes() for part in parts]), lanes)
        size = COUNT // lanes
        moved = [stepped(here, low, size) for low in range(0, COUNT, size)]
        for expected, *rows in zip(stepped(whole, 0, COUNT), *moved, strict=True):
            np.testing.assert_array_equal(expected.observation[0], np.concatenate([row.observation[0] for row in rows]))
            np.testing.assert_array_equal(expected.ended, np.concatenate([row.ended for row in rows]))
    finally:
        for pool in (whole, here, *parts):
            pool.close()


@pytest.mark.parametrize(
    ("package", "name", "expected"),
    [("gymnasium", "CartPole-v1", True), ("gymnasium", "Acrobot-v1", True), (__name__, "Forgetful", False)],
)
def test_only_environments_that_are_pickled_with_their_state_can_move(package: str, name: str, expected: bool) -> None:
    assert can_be_pickled(single_maker(Spec(package, name))) == expected
