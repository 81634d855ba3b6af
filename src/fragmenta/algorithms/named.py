"""Algorithms by name: the built-in ones, and classes of a user's own as `module:Class`."""

import difflib
import importlib
from types import ModuleType
from typing import Any

from fragmenta.algorithms import ALGORITHMS, Algorithm
from fragmenta.errors import ConfigError, unknown


def algorithm_class(name: str) -> type[Algorithm]:
    """The built-in algorithm of that name, or the class of that `module:Class`; ConfigError if there is none.

    Whatever the user's own module raises while it is imported is raised as it is, so that its traceback is seen.
    """
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    module, colon, qualified = name.partition(":")
    if not colon:
        raise unknown("algorithm", name, ALGORITHMS, ", or module:Class for one of your own")
    if not module or not qualified or module.startswith("."):
        raise ConfigError(f"cannot load algorithm '{name}': write it as module:Class, as in my_module:MyAlgorithm")
    found: Any = _imported(name, module)
    for part in qualified.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"cannot load algorithm '{name}': '{module}' has no {qualified}{_nearest(found, part)}")
        found = getattr(found, part)
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise ConfigError(f"'{name}' is not a class of algorithms: derive it from fragmenta.Algorithm")
    if "__dataclass_fields__" not in vars(found):  # else its fields would be neither flags nor kept with a run
        raise ConfigError(f"'{name}' is not a dataclass: write @dataclasses.dataclass(frozen=True) above the class")
    for method in ("init", "iterate"):
        if getattr(found, method) is getattr(Algorithm, method):
            raise ConfigError(f"'{name}' has no method {method}: write it, as fragmenta.Algorithm describes it")
    return found


def algorithm_name(algorithm: Algorithm) -> str:
    """Its name on the command line, or `module:Class` for a class of the user's own."""
    kind = type(algorithm)
    known = next((name for name, registered in ALGORITHMS.items() if registered is kind), None)
    return known or f"{kind.__module__}:{kind.__qualname__}"


def _imported(name: str, module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # One that the module itself fails to import is not the user's mistake in calling us, but in that module.
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(f"cannot load algorithm '{name}': {error}") from None


def _nearest(where: Any, name: str) -> str:
    attributes = getattr(where, "__dict__", {}).items()
    kinds = [key for key, value in attributes if isinstance(value, type) and issubclass(value, Algorithm)]
    near = difflib.get_close_matches(name, kinds, n=1, cutoff=0.4)
    return f": did you mean '{near[0]}'?" if near else ""
