"""Load what a user names as `module:Name`: an algorithm, an environment, a wrapper, a distribution policy, a sink."""

import difflib
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from fragmenta_core.faults import UnusableError


def load(kind: str, path: str, fits: Callable[[Any], bool] = callable) -> Any:
    """The object at `module:Name`; UnusableError if there is none, with the closest name whose object `fits`.

    Exceptions raised while importing the user's module propagate unchanged, so that their traceback is shown.
    """
    module, _, qualified = path.partition(":")
    if not module or not qualified or module.startswith("."):
        raise UnusableError(f"cannot load {kind} '{path}': write it as module:Class, as in my_module:Mine")
    owner: Any = _import(kind, path, module)
    for part in qualified.split("."):
        if not hasattr(owner, part):
            raise UnusableError(f"cannot load {kind} '{path}': '{module}' has no {qualified}{_hint(owner, part, fits)}")
        owner = getattr(owner, part)
    return owner


def construct(maker: Any, *positional: Any, **arguments: Any) -> Any:
    """Call a constructor; unexpected or missing arguments are the user's mistake, reported as such."""
    try:
        return maker(*positional, **arguments)
    except TypeError as error:
        about_arguments = (
            "unexpected keyword argument",
            "positional argument",
            "required keyword-only",
            "takes no arguments",
        )
        if not any(text in str(error) for text in about_arguments):
            raise
        raise UnusableError(f"wrong arguments: {error}".splitlines()[0]) from error


def _import(kind: str, path: str, module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A failing import inside the user's module is a bug in that module, not a wrong name: keep its traceback.
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise UnusableError(f"cannot load {kind} '{path}': {error}") from None


def _hint(owner: Any, name: str, fits: Callable[[Any], bool]) -> str:
    names = [key for key, value in getattr(owner, "__dict__", {}).items() if not key.startswith("_") and fits(value)]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    return f": did you mean '{near[0]}'?" if near else ""
