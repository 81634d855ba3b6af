"""Hyper-parameters that change over a run, by a rule in text: `entropy_cost=linear:0.01:0`."""

import dataclasses
import functools
import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fragmenta.algorithms.base import Algorithm
from fragmenta.algorithms.limits import check_limits
from fragmenta.algorithms.own_parts import own_function
from fragmenta.errors import ConfigError, unknown_field

Rule = Callable[[Any], Any]
"""From the share of the run that is done, 0 to 1, to a value."""


def _linear(first: float, last: float, share: Any) -> Any:
    return first + (last - first) * share


def _cosine(first: float, last: float, share: Any) -> Any:
    return last + (first - last) * 0.5 * (1.0 + jnp.cos(math.pi * share))


def _exponential(first: float, last: float, share: Any) -> Any:
    return first * (last / first) ** share


CHECKED = 0.0, 1.0, *(i / 20 for i in range(1, 20))
"""Shares of the run at which the values of a schedule are checked before it, in this order."""
KINDS = {"linear": _linear, "cosine": _cosine, "exponential": _exponential}
FORM = "NAME=linear:FIRST:LAST, cosine:FIRST:LAST, exponential:FIRST:LAST, or module:function for your own"


@functools.cache
def _traced_class(kind: type[Algorithm], fields: tuple[str, ...]) -> type[Algorithm]:
    """A subclass whose instances carry these fields as data through JAX functions, where others are constants."""
    body = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return types.new_class(kind.__name__, (kind,), {"traced": fields}, lambda names: names.update(body))


def variant(algorithm: Algorithm, numbers: Mapping[str, Any]) -> Algorithm:
    """The algorithm with these numbers in its fields, which may be traced values."""
    if not numbers:
        return algorithm
    values = {field.name: getattr(algorithm, field.name) for field in dataclasses.fields(algorithm) if field.init}
    traced = dict.fromkeys((*type(algorithm).traced_fields, *numbers))
    return _traced_class(type(algorithm), tuple(traced))(**values | dict(numbers))


def scheduled(algorithm: Algorithm, schedule: Sequence[str], share: Any) -> Algorithm:
    """The algorithm with its scheduled hyper-parameters at this share of the run, 0 to 1."""
    return variant(algorithm, {name: rule(share) for name, rule in rules_of(schedule).items()})


def rules_of(schedule: Sequence[str]) -> dict[str, Rule]:
    """The rule of every scheduled hyper-parameter; ConfigError for what is none."""
    rules = [_rule(text) for text in schedule]
    names = [name for name, _ in rules]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"schedule changes {twice[0]} by two rules: leave one out")
    return dict(rules)


def check_schedule(algorithm: Algorithm, schedule: Sequence[str]) -> None:
    """Raise ConfigError unless every scheduled hyper-parameter is a number of the algorithm that may change."""
    fields = {field.name: field for field in dataclasses.fields(algorithm) if field.init}
    for name, rule in rules_of(schedule).items():
        if name not in fields:
            raise unknown_field(f"hyper-parameter of {type(algorithm).__name__} in schedule", name, fields)
        if fields[name].type not in (float, "float"):
            problem = f"schedule changes {name}, which is {getattr(algorithm, name)!r}"
            fixed = "shapes, lengths of loops and choices are compiled once"
            raise ConfigError(f"{problem}: {fixed}, so only numbers that need not be whole can change")
        for other, needed in _conditions(type(algorithm)).get(name, {}).items():
            if (value := getattr(algorithm, other)) != needed:
                problem = f"schedule changes {name}, which has no effect while {other} is {value}"
                raise ConfigError(f"{problem}: set {other} to {needed}, or leave the schedule out")
        for share in CHECKED:
            value = rule(jnp.asarray(share))
            if not isinstance(value, jax.Array | np.generic | float | int) or jnp.shape(value):
                problem = f"the schedule of {name} returns {value!r} when {share:.0%} of the run is done"
                raise ConfigError(f"{problem}: it must return one number")
            check_limits(dataclasses.replace(algorithm, **{name: float(value)}))


def _conditions(kind: type[Algorithm]) -> dict[str, dict[str, Any]]:
    """The `used_if` of a class and its base classes."""
    return {name: values for base in reversed(kind.__mro__) for name, values in vars(base).get("used_if", {}).items()}


def _rule(text: str) -> tuple[str, Rule]:
    name, equals, rule = text.partition("=")
    kind, *numbers = rule.split(":")
    problem = f"schedule '{text}'"
    if not equals or not name:
        raise ConfigError(f"{problem} does not say what changes: write {FORM}")
    if kind not in KINDS:
        if len(numbers) != 1:
            raise ConfigError(f"{problem} is unknown: write {FORM}")
        return name, own_function("schedule", rule)
    try:
        first, last = map(float, numbers)
    except ValueError:
        raise ConfigError(f"{problem} needs two numbers after {kind}: write {FORM}") from None
    if kind == "exponential" and not first * last > 0:
        raise ConfigError(f"{problem} cannot pass zero: write two numbers of the same sign, or linear")
    return name, functools.partial(KINDS[kind], first, last)
