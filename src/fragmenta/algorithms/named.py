"""Look up algorithms by name: built-in ones, and user classes as `module:Class`."""

from typing import Any

from fragmenta.algorithms import ALGORITHMS, Algorithm
from fragmenta.errors import ConfigError, load, unknown


def algorithm_class(name: str) -> type[Algorithm]:
    """The built-in algorithm with that name, or the class at `module:Class`; ConfigError if there is none.

    Exceptions raised while importing the user's module propagate unchanged, so that their traceback is shown.
    """
    if name.lower() in ALGORITHMS:
        return ALGORITHMS[name.lower()]
    if ":" not in name:
        raise unknown("algorithm", name, ALGORITHMS, ", or module:Class for your own")
    candidate = load("algorithm", name, _is_algorithm)
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
