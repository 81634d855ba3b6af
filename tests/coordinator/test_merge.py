"""Replicas and fragments that share a device are merged."""

import pytest

from fragmenta.coordinator.merge import merge
from fragmenta.graph import Delivery, Fragment


def test_fragments_on_the_same_device_become_one() -> None:
    (only,) = merge([Fragment("actor", ("act", "step"), ("cpu:0",)), Fragment("learner", ("learn",), ("cpu:0",))])
    assert only == Fragment("actor+learner", ("act", "step", "learn"), ("cpu:0",))


def test_three_fragments_become_one_in_the_order_of_the_policy() -> None:
    (only,) = merge([Fragment(name, (f"{name} stage",), ("cpu:0",)) for name in "abc"])
    assert only == Fragment("a+b+c", ("a stage", "b stage", "c stage"), ("cpu:0",))


def test_fragments_on_different_devices_stay_separate() -> None:
    fragments = [Fragment("actor", ("act",), ("cpu:0",)), Fragment("learner", ("learn",), ("cpu:1",))]
    assert merge(fragments) == fragments
    assert merge([]) == []


def test_replicas_on_one_device_become_one() -> None:
    (only,) = merge([Fragment("actor", ("act",), ("cpu:0",) * 4, 4, "envs")])
    assert only == Fragment("actor", ("act",), ("cpu:0",), 1, "envs")


def test_replicas_are_merged_to_one_per_device() -> None:
    devices = ("cpu:1", "cpu:0", "cpu:1", "cpu:0")
    (only,) = merge([Fragment("actor", ("act",), devices, 4, "envs")])
    assert only == Fragment("actor", ("act",), ("cpu:1", "cpu:0"), 2, "envs")


def test_replicas_stay_separate_if_they_are_unevenly_distributed() -> None:
    uneven = Fragment("actor", ("act",), ("cpu:0", "cpu:0", "cpu:1"), 3, "envs")
    assert merge([uneven]) == [uneven]


def test_merged_replicas_merge_with_fragments_on_their_device() -> None:
    actors = Fragment("actor", ("act",), ("cpu:0", "cpu:0"), 2, "envs")
    (only,) = merge([actors, Fragment("learner", ("learn",), ("cpu:0",))])
    assert only == Fragment("actor+learner", ("act", "learn"), ("cpu:0",), 1, "envs")
    (turned,) = merge([Fragment("learner", ("learn",), ("cpu:0",)), actors])
    assert turned == Fragment("learner+actor", ("learn", "act"), ("cpu:0",), 1, "envs")


def test_replicated_fragments_on_the_same_devices_become_one() -> None:
    devices = ("cpu:0", "cpu:1")
    (only,) = merge([Fragment("a", ("act",), devices, 2, "envs"), Fragment("b", ("learn",), devices, 2, "envs")])
    assert only == Fragment("a+b", ("act", "learn"), devices, 2, "envs")


def test_replicas_along_different_axes_stay_apart() -> None:
    devices = ("cpu:0", "cpu:1")
    fragments = [Fragment("worlds", ("step",), devices, 2, "envs"), Fragment("agents", ("act",), devices, 2, "agents")]
    assert merge(fragments) == fragments


def test_fragments_on_the_same_devices_in_another_order_stay_separate() -> None:
    fragments = [
        Fragment("a", ("act",), ("cpu:0", "cpu:1"), 2, "envs"),
        Fragment("b", ("learn",), ("cpu:1", "cpu:0"), 2, "envs"),
    ]
    assert merge(fragments) == fragments


@pytest.mark.parametrize("delivery", [Delivery("actor", "any"), Delivery("actor", "latest"), Delivery("actor", lag=1)])
def test_fragments_that_do_not_wait_for_each_other_stay_separate(delivery: Delivery) -> None:
    fragments = [
        Fragment("actor", ("act",), ("cpu:0", "cpu:0"), 2, "envs"),
        Fragment("learner", ("learn",), ("cpu:0",), delivery=(delivery,)),
    ]
    assert merge(fragments) == fragments


def test_a_third_fragment_does_not_merge_free_running_ones() -> None:
    drifting = [
        Fragment("actor", ("act",), ("cpu:0",)),
        Fragment("learner", ("learn",), ("cpu:0",), delivery=(Delivery("actor", "latest"),)),
    ]
    third, fourth = Fragment("third", ("sum",), ("cpu:0",)), Fragment("fourth", ("note",), ("cpu:0",))
    merged = merge([*drifting, third, fourth])
    assert merged == [*drifting, Fragment("third+fourth", ("sum", "note"), ("cpu:0",))]


def test_fragments_with_a_synchronous_delivery_are_merged() -> None:
    waits = Fragment("learner", ("learn",), ("cpu:0",), delivery=(Delivery("actor"),))
    (only,) = merge([Fragment("actor", ("act",), ("cpu:0",)), waits])
    assert only.stages == ("act", "learn")
    assert only.delivery == ()


def test_a_stage_on_the_host_keeps_replicas_and_fragments_apart() -> None:
    env = Fragment("env", ("step",), ("cpu:0", "cpu:0"), 2, "envs")
    learner = Fragment("learner", ("act", "learn"), ("cpu:0",))
    assert merge([env, learner], host=("step",)) == [env, learner]
    assert merge([learner, env], host=("step",)) == [learner, env]
    assert len(merge([env, learner])) == 1
