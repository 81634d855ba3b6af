"""A hyper-parameter's default is that of the class that says so last."""

import dataclasses

import pytest

import fragmenta
from fragmenta.algorithms import ALGORITHMS


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_base_class_resets_a_default(name: str) -> None:
    """With several base classes, fields of a later one could be hidden by those that an earlier one inherits."""
    kind = ALGORITHMS[name]
    for field in dataclasses.fields(kind):
        owner = next(base for base in kind.__mro__ if field.name in vars(base).get("__annotations__", {}))
        assert field.default == vars(owner)[field.name], f"{field.name} should be as in {owner.__name__}"


def test_r2d2_collects_as_often_as_dqn() -> None:
    r2d2, dqn = fragmenta.R2D2(), fragmenta.DQN()
    for name in ("num_envs", "horizon", "updates", "max_grad_norm", "gamma"):
        assert getattr(r2d2, name) == getattr(dqn, name), name
