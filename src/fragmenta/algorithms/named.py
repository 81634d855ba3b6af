"""Look up algorithms by name: built-in ones, and user classes as `module:Class`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from fragmenta.algorithms import ALGORITHMS, Algorithm
from fragmenta.errors import ConfigError, load_named, unknown, unknown_field

AlgorithmLike = str | type[Algorithm] | Algorithm


def algorithm_class(name: str) -> type[Algorithm]:
    """The built-in algorithm with that name, or the class at `module:Class`; ConfigError if there is none.

    Exceptions raised while importing the user's module propagate unchanged, so that their traceback is shown.
    """
    if name.lower() in ALGORITHMS:
        return ALGORITHMS[name.lower()]
    if ":" not in name:
        raise unknown("algorithm", name, ALGORITHMS, ", or module:Class for your own")
    return _usable(name, load_named("algorithm", name, _is_algorithm))


def algorithm_from(algorithm: AlgorithmLike, hyper_parameters: Mapping[str, Any]) -> Algorithm:
    """The algorithm with that name, of that class or like that instance, with these hyper-parameters changed."""
    kind = algorithm_class(algorithm) if isinstance(algorithm, str) else algorithm
    if not isinstance(kind, Algorithm):
        kind = _usable(getattr(kind, "__name__", repr(kind)), kind)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    for name in hyper_parameters:
        if name not in fields:
            owner = kind if isinstance(kind, type) else type(kind)
            raise unknown_field(f"hyper-parameter of {owner.__name__}", name, fields)
    values = {name: _whole(value, fields[name]) for name, value in hyper_parameters.items()}
    if isinstance(kind, Algorithm):
        return dataclasses.replace(kind, **values)
    try:
        return kind(**values)
    except TypeError as error:
        raise ConfigError(f"cannot make {kind.__name__}: {error}: give its hyper-parameters by name") from None


def _whole(value: Any, field: dataclasses.Field) -> Any:
    """A number like 1e6, which Python makes a float, as the integer that the field takes."""
    takes_integers = field.type in (int, "int")  # a string if its module postpones the evaluation of annotations
    return int(value) if takes_integers and isinstance(value, float) and value.is_integer() else value


def _usable(name: str, candidate: Any) -> type[Algorithm]:
    if not _is_algorithm(candidate):
        raise ConfigError(f"'{name}' is not an algorithm class: derive it from fragmenta.Algorithm")
    if "__dataclass_fields__" not in vars(candidate):  # else its fields would be neither flags nor saved with a run
        raise ConfigError(f"'{name}' is not a dataclass: write @dataclasses.dataclass(frozen=True) above the class")
    for method in ("init", "iterate"):
        if getattr(candidate, method) is getattr(Algorithm, method):
            raise ConfigError(f"'{name}' has no method {method}: implement it as described in fragmenta.Algorithm")
    return candidate


def algorithm_name(algorithm: Algorithm) -> str:
    """The algorithm's command-line name, or `module:Class` for a user's class."""
    kind = type(algorithm)
    builtin = next((name for name, registered in ALGORITHMS.items() if registered is kind), None)
    return builtin or f"{kind.__module__}:{kind.__qualname__}"


def _is_algorithm(candidate: Any) -> bool:
    return isinstance(candidate, type) and issubclass(candidate, Algorithm)
