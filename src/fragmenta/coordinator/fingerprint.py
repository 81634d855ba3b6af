"""A hash of the plan and of the traced program with its constants, which processes that train together must share."""

import dataclasses
import functools
import hashlib
import re
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType, MethodType
from typing import Any

import jax
import numpy as np

from fragmenta.algorithms import Algorithm
from fragmenta.envs import Environment
from fragmenta.graph import Plan
from fragmenta.tracing.iteration import iteration
from fragmenta.tracing.jaxprs import is_literal, key_dtype, open_jaxpr
from fragmenta.tracing.trace import abstract_state

_LOCATIONS = re.compile(r"0x[0-9a-f]+|[^\s'\"(]*\.py(:\d+)?")
"""Memory addresses and source paths, which differ between processes and machines."""


def fingerprint(plan: Plan, algorithm: Algorithm, env: Environment) -> str:
    """Hash that is equal in all processes that build the same plan from the same code with the same JAX version.

    Covers the traced program with its constants, and the code of the host functions it calls.
    """
    state = abstract_state(algorithm, env)
    traced = jax.make_jaxpr(iteration(algorithm, env))(state)
    text = "\n".join([jax.__version__, str(plan), program_text(traced)])
    return hashlib.sha256(text.encode()).hexdigest()


def program_text(traced: Any) -> str:
    """A traced program with its constants as text, equal in all processes that trace the same code."""
    return "\n".join(_Listing(_content).program(traced))


def work_text(traced: Any) -> str:
    """A traced program as text, equal for programs that do the same work: without the values of single numbers and of
    floats, such as a learning rate, but where they decide how many rounds a loop has."""
    return "\n".join(_Listing(_kind).program(traced))


class _Listing:
    """A traced program as text. JAX's own listing omits constants and depends on what happened to be cached."""

    def __init__(self, content: Callable[[Any], str]) -> None:
        self._content = content
        self._texts: dict[Any, str] = {}

    def program(self, jaxpr: Any) -> Iterable[str]:
        inner, constants = open_jaxpr(jaxpr)
        yield "constants " + " ".join(map(self._content, constants))
        yield "from " + " ".join(map(self._atom, (*inner.constvars, *inner.invars)))
        for equation in inner.eqns:
            if equation.primitive.name == "while":  # how many rounds it has may depend on any number
                exact = _Listing(_content)
                yield " ".join(_content(atom.val) for atom in equation.invars if is_literal(atom))
                yield exact._parameter(equation.params)
            yield equation.primitive.name + " " + " ".join(map(self._atom, equation.invars))
            for name in sorted(equation.params):
                yield f"{name} {self._parameter(equation.params[name])}"
            yield "to " + " ".join(map(self._atom, equation.outvars))
        yield "gives " + " ".join(map(self._atom, inner.outvars))

    def _atom(self, atom: Any) -> str:
        if is_literal(atom):
            return self._content(atom.val)
        if atom not in self._texts:
            self._texts[atom] = f"{len(self._texts)}:{_type_text(atom.aval)}"
        return self._texts[atom]

    def _parameter(self, value: Any) -> str:
        if hasattr(getattr(value, "jaxpr", value), "eqns"):
            return "{\n" + "\n".join(_Listing(self._content).program(value)) + "\n}"
        if isinstance(value, (tuple, list)):
            return "(" + ", ".join(map(self._parameter, value)) + ")"
        if isinstance(value, (set, frozenset)):  # iteration order depends on hashes, which differ between processes
            return "{" + ", ".join(sorted(map(self._parameter, value))) + "}"
        if isinstance(value, dict):
            return "{" + ", ".join(sorted(f"{key}: {self._parameter(value[key])}" for key in value)) + "}"
        if isinstance(value, (np.ndarray, np.generic, jax.Array)):
            return self._content(value)
        if isinstance(value, functools.partial):
            return self._parameter((value.func, value.args, value.keywords))
        if isinstance(value, MethodType):
            return self._parameter(value.__func__)
        if isinstance(value, FunctionType):
            return f"{value.__module__}.{value.__qualname__} {self._parameter(value.__code__)}"
        if isinstance(value, CodeType):
            return f"{value.co_code.hex()} {value.co_names} {self._parameter(value.co_consts)}"
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            return type(value).__qualname__ + self._parameter(fields)
        return _LOCATIONS.sub("", repr(value))


@functools.lru_cache(maxsize=4096)
def _type_text(aval: Any) -> str:
    return str(aval)


def _content(array: Any) -> str:
    """Dtype, shape and a hash of the content of a constant."""
    if hasattr(array, "dtype") and key_dtype(array.dtype):
        array = jax.random.key_data(array)
    values = np.asarray(array)
    return f"{values.dtype}{values.shape}{hashlib.sha256(values.tobytes()).hexdigest()}"


def _kind(array: Any) -> str:
    """The same, but of single numbers and of floats only dtype and shape."""
    if hasattr(array, "dtype") and key_dtype(array.dtype):
        return _content(array)
    values = np.asarray(array)
    is_free = values.ndim == 0 or values.dtype.kind == "f"
    return f"{values.dtype}{values.shape}" if is_free else _content(values)
