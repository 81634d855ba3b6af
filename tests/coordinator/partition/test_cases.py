"""How results are compared, and that a wrong result is detected and named."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from partition import cases
from partition.cases import Case, UnfitError, assert_near, check
from partition.nestings import NESTINGS
from partition.operations import OPERATIONS

MEAN = Case(("mean over the environments",), (4, 3), 0, replicas=2)


def test_there_are_many_operations() -> None:
    plain_names = {name.split(" over ")[0] for name in OPERATIONS}
    assert len(plain_names) >= 140
    assert len(NESTINGS) >= 25


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (jnp.array([1.0, 2.0]), jnp.array([1.0, 2.001])),
        (jnp.array([1.0, jnp.nan]), jnp.array([1.0, 2.0])),
        (jnp.array([1.0, 2.0]), jnp.array([1.0, jnp.nan])),
        (jnp.array([1.0, jnp.inf]), jnp.array([1.0, -jnp.inf])),
        (jnp.array([jnp.nan]), jnp.array([jnp.nan])),
        (jnp.zeros(0), jnp.zeros(0)),
        (jnp.array([1, 2]), jnp.array([1, 3])),
        (jnp.array([1.0]), jnp.array([1])),
        (jnp.ones((2, 1)), jnp.ones((1, 2))),
        (jax.random.key(1), jax.random.key(2)),
        (jnp.array([1 + 1j]), jnp.array([1 - 1j])),
    ],
)
def test_assert_near_fails(expected: Any, actual: Any) -> None:
    with pytest.raises(AssertionError):
        assert_near(expected, actual, 1e-5, "a result")


def test_assert_near_passes() -> None:
    assert_near(jnp.array([100.0, jnp.nan, jnp.inf]), jnp.array([100.0005, jnp.nan, jnp.inf]), 1e-5, "a result")
    assert_near(jax.random.key(1), jax.random.key(1), 1e-5, "a result")


def test_a_replica_that_ignores_the_others_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def first_part(function: Any, arguments: Any, dims: Any, replicas: int) -> list[Any]:
        parts = [a if d is None else jnp.split(a, replicas, d)[0] for a, d in zip(arguments, dims, strict=True)]
        return jax.tree.leaves(function(*parts))

    monkeypatch.setattr(cases, "on_replicas", first_part)
    with pytest.raises(AssertionError) as caught:
        check(MEAN)
    assert str(MEAN) in str(caught.value)


def test_cases_that_the_plain_program_refuses_are_not_counted() -> None:
    with pytest.raises(UnfitError, match="derivative"):
        check(Case(("argmax over all",), (4, 3), 0, 2, ("grad of a mean",)))
    with pytest.raises(UnfitError, match="does not take"):
        check(Case(("bitwise xor reduced over all",), (4, 3), 0, 2, kind="key"))
    with pytest.raises(UnfitError, match="does not take"):
        check(Case(("sin", "argsort over another"), (4, 3), 0, 2))
