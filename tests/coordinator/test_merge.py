"""What shares a device becomes one: replicas of a fragment, and fragments."""

import pytest

from fragmenta.coordinator.merge import merge
from fragmenta.graph import Delivery, Fragment


def test_fragments_on_the_same_device_become_one() -> None:
    (only,) = merge([Fragment("actor", ("act", "step"), ("cpu:0",)), Fragment("learner", ("learn",), ("cpu:0",))])
    assert only == Fragment("actor+learner", ("act", "step", "learn"), ("cpu:0",))


def test_three_fragments_become_one_in_the_order_of_the_policy() -> None:
    (only,) = merge([Fragment(name, (f"{name} stage",), ("cpu:0",)) for name in "abc"])
    assert only == Fragment("a+b+c", ("a stage", "b stage", "c stage"), ("cpu:0",))


def test_fragments_on_other_devices_stay() -> None:
    apart = [Fragment("actor", ("act",), ("cpu:0",)), Fragment("learner", ("learn",), ("cpu:1",))]
    assert merge(apart) == apart
    assert merge([]) == []


def test_replicas_on_one_device_become_one() -> None:
    (only,) = merge([Fragment("actor", ("act",), ("cpu:0",) * 4, 4, "envs")])
    assert only == Fragment("actor", ("act",), ("cpu:0",), 1, "envs")


def test_replicas_become_as_many_as_there_are_devices() -> None:
    devices = ("cpu:1", "cpu:0", "cpu:1", "cpu:0")
    (only,) = merge([Fragment("actor", ("act",), devices, 4, "envs")])
    assert only == Fragment("actor", ("act",), ("cpu:1", "cpu:0"), 2, "envs")


def test_replicas_stay_where_a_device_has_more_of_them() -> None:
    uneven = Fragment("actor", ("act",), ("cpu:0", "cpu:0", "cpu:1"), 3, "envs")
    assert merge([uneven]) == [uneven]


def test_replicas_that_became_one_join_what_is_on_their_device() -> None:
    actors = Fragment("actor", ("act",), ("cpu:0", "cpu:0"), 2, "envs")
    (only,) = merge([actors, Fragment("learner", ("learn",), ("cpu:0",))])
    assert only == Fragment("actor+learner", ("act", "learn"), ("cpu:0",), 1, "envs")
    (turned,) = merge([Fragment("learner", ("learn",), ("cpu:0",)), actors])
    assert turned == Fragment("learner+actor", ("learn", "act"), ("cpu:0",), 1, "envs")


def test_replicated_fragments_on_the_same_devices_become_one() -> None:
    both = ("cpu:0", "cpu:1")
    (only,) = merge([Fragment("a", ("act",), both, 2, "envs"), Fragment("b", ("learn",), both, 2, "envs")])
    assert only == Fragment("a+b", ("act", "learn"), both, 2, "envs")


def test_replicas_along_different_axes_stay_apart() -> None:
    both = ("cpu:0", "cpu:1")
    apart = [Fragment("worlds", ("step",), both, 2, "envs"), Fragment("agents", ("act",), both, 2, "agents")]
    assert merge(apart) == apart


def test_the_same_devices_in_another_order_are_other_devices() -> None:
    apart = [
        Fragment("a", ("act",), ("cpu:0", "cpu:1"), 2, "envs"),
        Fragment("b", ("learn",), ("cpu:1", "cpu:0"), 2, "envs"),
    ]
    assert merge(apart) == apart


@pytest.mark.parametrize("delivery", [Delivery("actor", "any"), Delivery("actor", "latest"), Delivery("actor", lag=1)])
def test_fragments_that_do_not_wait_for_each_other_stay_as_they_are(delivery: Delivery) -> None:
    apart = [
        Fragment("actor", ("act",), ("cpu:0", "cpu:0"), 2, "envs"),
        Fragment("learner", ("learn",), ("cpu:0",), delivery=(delivery,)),
    ]
    assert merge(apart) == apart


def test_a_third_does_not_join_fragments_that_drift() -> None:
    drifting = [
        Fragment("actor", ("act",), ("cpu:0",)),
        Fragment("learner", ("learn",), ("cpu:0",), delivery=(Delivery("actor", "latest"),)),
    ]
    third, fourth = Fragment("third", ("sum",), ("cpu:0",)), Fragment("fourth", ("note",), ("cpu:0",))
    merged = merge([*drifting, third, fourth])
    assert merged == [*drifting, Fragment("third+fourth", ("sum", "note"), ("cpu:0",))]


def test_a_delivery_that_waits_is_no_reason_to_stay_apart() -> None:
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
