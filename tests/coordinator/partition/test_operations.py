"""For any operation on arrays of environments, replicas that hold parts compute the same as the plain program."""

import dataclasses
import math
import random
from collections.abc import Sequence
from typing import Any

import jax
import pytest
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st

from partition.cases import Case, Chain, Program, UnfitError, assert_near, build_program, check, fits
from partition.nestings import NESTINGS
from partition.operations import OPERATIONS
from partition.table import BOOL, FLOAT, INT, KEY
from replicas import on_replicas

TOGETHER = 64
"""The number of operations compiled as one program, because most of the time is compiler start-up."""
SERIES = 6
"""The number of tests that share the random cases of the full suite, to run in parallel."""
QUICK = [name for name, operation in OPERATIONS.items() if not operation.slow]
PLACES = [((2, 4, 3), 1)]
"""Shapes, and the dimension of the environments."""
MORE_PLACES = [
    ((4, 3), 0),
    ((4,), 0),
    ((3, 4), 1),
    ((4, 4), 0),
    ((2, 3, 4), 2),
    ((4, 1, 2), 0),
    ((4, 2, 3, 2), 0),
    ((2, 4, 1, 3), 1),
    ((2, 3, 4, 4), 2),
    ((2, 2, 3, 4), 3),
]


def batches(names: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(names[i : i + TOGETHER]) for i in range(0, len(names), TOGETHER)]


def case_id(value: Any) -> str | None:
    return f"{value[0]} to {value[-1]}" if isinstance(value[0], str) else f"{value[0]} at {value[1]}"


def single(names: Sequence[str], place: tuple[tuple[int, ...], int], replicas: int) -> list[Case]:
    """A case for each operation that accepts the shape. The kind varies with the place, if it accepts several."""
    shape, at = place
    cases = []
    for name in names:
        operation = OPERATIONS[name]
        if operation.ranks[0] <= len(shape) <= operation.ranks[1]:
            kind = operation.kinds[(at + len(shape)) % len(operation.kinds)]
            cases.append(Case((name,), shape, at, replicas, kind=kind))
    return cases


def check_together(cases: list[Case]) -> None:
    """Check cases that differ only in their operation, as one program."""
    programs = [build_program(case) for case in cases]
    starts = [sum(len(p.arguments) for p in programs[:i]) for i in range(len(programs))]

    def function(*arguments: Any) -> list[list[Any]]:
        spans = zip(programs, starts, strict=True)
        return [p.function(*arguments[start : start + len(p.arguments)]) for p, start in spans]

    arguments = [argument for program in programs for argument in program.arguments]
    dims = [dim for program in programs for dim in program.dims]
    expected = jax.jit(function)(*arguments)
    actual = jax.tree.unflatten(
        jax.tree.structure(expected), replicas_results(function, arguments, dims, cases, programs)
    )
    for case, program, these, those in zip(cases, programs, expected, actual, strict=True):
        assert these, f"{case} has no result"
        for a, b in zip(these, those, strict=True):
            assert_near(a, b, program.within, str(case))


def replicas_results(function: Any, arguments: Any, dims: Any, cases: list[Case], programs: list[Program]) -> list[Any]:
    try:
        return on_replicas(function, arguments, dims, cases[0].replicas)
    except Exception as together_failed:
        for case, program in zip(cases, programs, strict=True):
            try:
                on_replicas(program.function, program.arguments, program.dims, case.replicas)
            except Exception as problem:
                raise AssertionError(f"{case} fails") from problem
        raise AssertionError(f"fails together, but none by itself: {cases}") from together_failed


@pytest.mark.brief("a switch*", "average*", "bitwise*", "broadcast*", "exp*", "power*")
@pytest.mark.parametrize("place", PLACES, ids=case_id)
@pytest.mark.parametrize("names", batches(QUICK), ids=case_id)
def test_every_operation(names: tuple[str, ...], place: tuple[tuple[int, ...], int]) -> None:
    check_together(single(names, place, replicas=2))


@pytest.mark.full
@pytest.mark.parametrize("place", MORE_PLACES, ids=case_id)
@pytest.mark.parametrize("names", batches(list(OPERATIONS)), ids=case_id)
def test_every_operation_at_every_place(names: tuple[str, ...], place: tuple[tuple[int, ...], int]) -> None:
    check_together(single(names, place, replicas=4))


def drawn_case(seed: int, names: Sequence[str]) -> Case:
    """A random case of one to three operations in one or two nestings, with sizes that are easy to confuse.

    A separate generator draws uniformly; Hypothesis would prefer the first of each list.
    """
    draws = random.Random(seed)
    replicas = draws.choice((1, 2, 2, 3, 4, 8))
    part = draws.choice([size for size in (1, 2, 3) if size * replicas <= 12])
    envs, rank = replicas * part, draws.randint(1, 4)
    at = draws.randrange(rank)
    other_sizes = [draws.choice((envs, part, 1, 2, 3)) for _ in range(rank - 1)]
    while envs * math.prod(other_sizes) > 200:
        other_sizes[other_sizes.index(max(other_sizes))] = 2
    shape = (*other_sizes[:at], envs, *other_sizes[at:])
    differentiated = draws.random() < 0.3
    kind = FLOAT if differentiated else draws.choice((FLOAT, FLOAT, FLOAT, INT, INT, BOOL, KEY))
    horizon = draws.choice((1, 2, min(envs, 4)))
    case = Case((), shape, at, replicas, (), kind, draws.random() < 0.3, horizon, seed % 1000)
    chain = Chain(case)
    for _ in range(draws.choice((1, 1, 2, 3))):
        operations = [OPERATIONS[name] for name in names if OPERATIONS[name].smooth or not differentiated]
        accepted = [operation for operation in operations if chain.accepts(operation)]
        if accepted:  # a result may have too many dimensions for all of them
            chain.add(draws.choice(accepted))
    nestings: list[str] = []
    for number in range(draws.choice((1, 1, 2))):
        fitting = [n for n in NESTINGS if fits(chain, [NESTINGS[name] for name in (*nestings, n)])]
        derivatives = [n for n in fitting if NESTINGS[n].derivative]
        nestings.append(draws.choice(derivatives if differentiated and derivatives and not number else fitting))
    chosen = tuple(operation.name for operation in chain.operations)
    return dataclasses.replace(case, operations=chosen, nestings=tuple(nestings))


def check_drawn(seed: int, names: Sequence[str]) -> None:
    """Check a random case, unless the plain program refuses it or returns only NaN."""
    try:
        check(drawn_case(seed, names))
    except UnfitError:
        reject()


# No shrinking: an example takes a second to compile, and a failure prints the case that reproduces it.
drawing = settings(
    derandomize=True,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)


seeds = st.integers(0, 2**32 - 1)


@pytest.mark.full
@settings(drawing, max_examples=40)
@given(seeds)
def test_operations_in_nestings(seed: int) -> None:
    check_drawn(seed, QUICK)


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("series", range(SERIES))
@settings(drawing, max_examples=1500 // SERIES)
@given(seeds)
def test_many_operations_in_nestings(series: int, seed: int) -> None:
    check_drawn(seed * SERIES + series, list(OPERATIONS))
