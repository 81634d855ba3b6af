"""A test case: a chain of operations, nested, on arrays whose environments are split among replicas."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from helpers import raw
from partition.nestings import NESTINGS, Nesting
from partition.operations import OPERATIONS
from partition.table import BOOL, FLOAT, INT, KEY, Operation, per_element
from replicas import on_replicas


class UnfitError(Exception):
    """The plain program does not accept these shapes, or its results cannot be compared."""


@dataclasses.dataclass(frozen=True)
class Case:
    """`check(case)` runs it; its repr recreates it."""

    operations: tuple[str, ...]
    shape: tuple[int, ...]
    at: int
    """The dimension of the environments."""
    replicas: int
    nestings: tuple[str, ...] = ("plain",)
    """Outermost first."""
    kind: str = FLOAT
    shares_second: bool = False
    """Every replica holds the whole second argument of an operation."""
    horizon: int = 2
    """The length of the sequence, for nestings over one."""
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Program:
    """A built case: the function, its arguments, and the dimension along which each argument is split."""

    function: Any
    arguments: tuple[Any, ...]
    dims: tuple[int | None, ...]
    within: float


def check(case: Case) -> None:
    """Assert that replicas compute the same as the plain program."""
    program = build_program(case)
    try:
        expected = jax.tree.leaves(jax.jit(program.function)(*program.arguments))
    except jax.errors.JaxRuntimeError as problem:  # XLA rejects some layouts of Fourier transforms on a CPU
        raise UnfitError(str(problem)) from problem
    if any(is_all_nan(raw(leaf)) for leaf in expected):
        raise UnfitError("all results are NaN")
    actual = on_replicas(program.function, program.arguments, program.dims, case.replicas)
    shapes = [getattr(a, "shape", ()) for a in program.arguments]
    where = f"{case}, arguments {shapes} in parts along {program.dims}"
    assert len(actual) == len(expected), f"{where}: {len(actual)} results instead of {len(expected)}"
    for number, (a, b) in enumerate(zip(expected, actual, strict=True)):
        assert_near(a, b, program.within, f"{where}: result {number}")


def build_program(case: Case) -> Program:
    """The function and the arguments of a case."""
    nestings = [NESTINGS[name] for name in case.nestings]
    chain = Chain(case)
    for name in case.operations:
        chain.add(OPERATIONS[name])
    if not fits(chain, nestings):
        raise UnfitError("the nesting needs a derivative that these operations do not have")
    draws = np.random.default_rng(case.seed)
    lifted = (case.horizon,) * sum(nesting.lifted for nesting in nestings)
    function = chain.run
    for nesting in reversed(nestings):
        function = nesting.wrap(function, chain.again)
    x = array_of(case.kind, (*lifted, *case.shape), draws)
    arguments = (x, *chain.others)
    try:
        shapes = jax.eval_shape(function, *arguments)
    except (TypeError, ValueError) as problem:
        raise UnfitError(str(problem)) from problem
    if not shapes or any(leaf.size == 0 for leaf in shapes):
        raise UnfitError("a result is empty")
    # Each operation adds a rounding error, and a derivative sums terms that almost cancel.
    within = chain.within * len(chain.operations) * (3 if any(nesting.derivative for nesting in nestings) else 1)
    return Program(function, arguments, (case.at + len(lifted), *chain.dims), within)


def fits(chain: "Chain", nestings: Sequence[Nesting]) -> bool:
    """Whether the operations have the derivatives that the nestings need."""
    outside = False
    for nesting in nestings:
        if nesting.derivative and outside:
            return False  # only one derivative: a second one need not be finite
        if outside and not nesting.smooth:
            return False
        outside = outside or bool(nesting.derivative)
    directions = {nesting.derivative for nesting in nestings} - {""}
    if not directions:
        return True
    has_fraction = any(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in chain.results)
    return (
        chain.case.kind == FLOAT
        and has_fraction
        and all(op.smooth for op in chain.operations)
        and (directions == {"backwards"} or all(op.forwards for op in chain.operations))
    )


class Chain:
    """A chain of operations. Tracks the type of the last result to decide which operation can follow."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.operations: list[Operation] = []
        self.others: list[Any] = []
        self.dims: list[int | None] = []
        self.within = 1e-5
        self._steps: list[Any] = []
        self._draws = np.random.default_rng(case.seed + 1)
        self._value: Any = jax.eval_shape(lambda: array_of(case.kind, case.shape, np.random.default_rng(0)))
        self._exact = True
        self.results: list[Any] = []

    def accepts(self, operation: Operation) -> bool:
        """Whether the operation can follow: the last result can be converted to its input without a discontinuity."""
        kind, least, most = _kind(self._value.dtype), *operation.ranks
        rank = max(1, len(self._value.shape))
        if not least <= rank <= most or (operation.jumps and not self._exact):
            return False
        if kind == KEY or KEY in operation.kinds:
            return kind in operation.kinds
        return kind in operation.kinds or kind != FLOAT or self._exact

    def add(self, operation: Operation) -> None:
        """Append an operation."""
        if not self.accepts(operation):
            raise UnfitError(f"{operation.name} does not take {self._value}")
        kind, first = _kind(self._value.dtype), not self.operations
        wanted_kind = kind if kind in operation.kinds else operation.kinds[0]
        shape = self._value.shape or self.case.shape
        d = shape.index(self._envs) if self._envs in shape else 0
        d = self.case.at if first else d
        numbers = []
        if operation.second:
            numbers.append(len(self.others) + 1)
            self._draw_second(operation.second, wanted_kind, shape, d)

        def step(x: Any, arguments: Any) -> list[Any]:
            value = x if first else _tamed(x, arguments[0], self.case.kind)
            value = _converted(value, kind, wanted_kind)
            return jax.tree.leaves(operation.apply(value, *(arguments[i] for i in numbers), d))

        try:
            shaped = (array_of(self.case.kind, self.case.shape, np.random.default_rng(0)), *self.others)
            self.results = jax.eval_shape(step, self._value, shaped)
        except (TypeError, ValueError, ZeroDivisionError) as problem:
            raise UnfitError(f"{operation.name} of {self._value}: {problem}") from problem
        if not self.results or self.results[0].size == 0:
            raise UnfitError(f"{operation.name} gives nothing")
        self._steps.append(step)
        self.operations.append(operation)
        self.within = max(self.within, operation.within)
        self._value = self.results[0]
        exact_result = operation.exact or _kind(self._value.dtype) != FLOAT
        self._exact = self._exact and exact_result

    def run(self, x: Any, *others: Any) -> list[Any]:
        """All results of the last operation; the first result of each operation is the input of the next."""
        leaves = [x]
        for step in self._steps:
            leaves = step(leaves[0], (x, *others))
        return leaves

    def again(self, x: Any, leaves: list[Any]) -> Any:
        """Another x: computed from the results, unless an operation could amplify a rounding error in them."""
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return per_element(lambda key: jax.random.fold_in(key, 1), x)
        if x.dtype == bool:
            return ~x
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return (x + 1) % 7
        if any(op.jumps for op in self.operations) or self.case.kind != FLOAT:
            return -x
        for leaf in leaves:
            if jnp.issubdtype(leaf.dtype, jnp.floating):
                part = jnp.clip(leaf.astype(x.dtype), -4, 4)
                x = 0.8 * x + 0.1 * (part if _broadcasts(part.shape, x.shape) else jnp.mean(part))
        return x

    @property
    def _envs(self) -> int:
        return self.case.shape[self.case.at]

    def _draw_second(self, second: str, kind: str, shape: tuple[int, ...], d: int) -> None:
        dim: int | None = None
        if second == "same":
            array, dim = array_of(kind, shape, self._draws), d
        elif second == "index":
            array, dim = jnp.asarray(self._draws.integers(-1, shape[d] + 1, shape[d]), jnp.int32), 0
        elif second == "weight":
            array = array_of(FLOAT, (shape[-1], 3), self._draws)
        else:
            array = jax.random.key(self.case.seed + 11)
        divides = dim is not None and array.shape[dim] % self.case.replicas == 0
        self.others.append(array)
        self.dims.append(dim if divides and not self.case.shares_second else None)


def array_of(kind: str, shape: tuple[int, ...], draws: np.random.Generator) -> Any:
    """A random array, without ties and zeros where possible."""
    if kind == FLOAT:
        return jnp.asarray(draws.uniform(0.05, 1.9, shape) * draws.choice([-1, 1], shape), jnp.float32)
    if kind == INT:
        return jnp.asarray(draws.integers(0, 7, shape), jnp.int32)
    if kind == BOOL:
        return jnp.asarray(draws.integers(0, 2, shape), bool)
    return jax.random.split(jax.random.key(int(draws.integers(1000))), shape)


def is_all_nan(leaf: np.ndarray) -> bool:
    return bool(np.issubdtype(leaf.dtype, np.inexact) and np.isnan(leaf).all())


def assert_near(expected: Any, actual: Any, within: float, where: str) -> None:
    """Assert equality; floats only relative to the largest element, with NaN and infinity in the same places."""
    assert expected.dtype == actual.dtype, f"{where} is {actual.dtype} instead of {expected.dtype}"
    a, b = raw(expected), raw(actual)
    assert a.shape == b.shape, f"{where} has shape {b.shape} instead of {a.shape}"
    assert a.size, f"{where} is empty"
    if not jnp.issubdtype(expected.dtype, jnp.inexact):
        np.testing.assert_array_equal(b, a, err_msg=where)
        return
    a, b = (v.astype(np.complex128 if np.iscomplexobj(v) else np.float64) for v in (a, b))
    finite = np.isfinite(a)
    assert not np.isnan(a).all(), f"{where} is NaN everywhere"
    np.testing.assert_array_equal(b[~finite], a[~finite], err_msg=where)
    largest = max(np.abs(a[finite]).max(initial=0.0), 0.5)
    np.testing.assert_allclose(b[finite], a[finite], rtol=0, atol=within * largest, err_msg=where)


def _kind(dtype: Any) -> str:
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return KEY
    if jnp.issubdtype(dtype, jnp.bool_):
        return BOOL
    return FLOAT if jnp.issubdtype(dtype, jnp.inexact) else INT


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    padded = (1,) * (len(to) - len(shape)) + shape
    return len(padded) == len(to) and all(a in (1, b) for a, b in zip(padded, to, strict=True))


def _tamed(value: Any, x: Any, kind: str) -> Any:
    """A result as the input of an operation: bounded, float32 instead of half or complex, and broadcast if scalar."""
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return value
    if jnp.issubdtype(value.dtype, jnp.complexfloating):
        value = value.real
    if jnp.issubdtype(value.dtype, jnp.floating):
        value = jnp.clip(value.astype(jnp.float32), -4, 4)
    elif value.dtype != bool:
        value = value.astype(jnp.int32) % 97
    if value.ndim == 0:
        scalar = value
        value = jnp.broadcast_to(scalar, x.shape)
        if kind == FLOAT and jnp.issubdtype(scalar.dtype, jnp.floating):
            value = x + scalar
    return value


def _converted(value: Any, kind: str, wanted_kind: str) -> Any:
    if kind == wanted_kind:
        return value
    if wanted_kind == FLOAT:
        return value.astype(jnp.float32) * 0.375
    if wanted_kind == INT:
        return (value * 5 if kind == FLOAT else value).astype(jnp.int32) % 97
    return value > 0.1 if kind == FLOAT else value % 2 == 0
