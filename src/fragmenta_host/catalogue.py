"""Environment specifications, and the adapters of the packages that make them."""

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

from fragmenta_core.faults import UnusableError
from fragmenta_host.single import Single

SINGLES = {"gymnasium": "gymnasium_envs:GymnasiumEnv", "pettingzoo": "pettingzoo_envs:PettingZooEnv"}
"""Packages whose environments are stepped one by one."""
VECTORS = {"envpool": "envpool_envs:EnvPool", "ale": "ale_envs:AtariVector"}
"""Packages that step many environments at once, in their own threads."""
EXTRAS = {"pettingzoo": "pettingzoo", "envpool": "envpool", "ale": "atari", "gymnasium": "gymnasium"}


@dataclasses.dataclass(frozen=True)
class Spec:
    """A requested environment: package and name, constructor arguments, and wrappers."""

    package: str
    name: str
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    wrappers: tuple[str, ...] = ()
    """Gymnasium wrappers as `module:Class`, innermost first."""
    stack: int = 1
    """How many of the latest observations to stack."""

    def __str__(self) -> str:
        return f"{self.package}:{self.name}"

    def __hash__(self) -> int:
        return hash((str(self), repr(self.arguments), self.wrappers, self.stack))

    @property
    def is_vector(self) -> bool:
        """Whether the package itself steps many environments at once."""
        return self.package in VECTORS


def single_maker(spec: Spec) -> Callable[[], Single]:
    """A function that makes one environment; an unknown package is taken as the user's own module."""

    def make() -> Single:
        kind = _load(SINGLES.get(spec.package, SINGLES["gymnasium"]), spec.package)
        return kind(spec.package, spec.name, spec.arguments, list(spec.wrappers), spec.stack)

    return make


def vector_class(spec: Spec) -> Any:
    """The adapter of a package that steps many environments at once."""
    if spec.wrappers or spec.arguments.get("wrappers"):
        raise UnusableError(f"{spec} steps its environments in C++, so Python wrappers cannot be applied")
    return _load(VECTORS[spec.package], spec.package)


def _load(path: str, package: str) -> Any:
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(f"fragmenta_host.{module}"), name)
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if not missing or missing == "fragmenta_host":
            raise
        extra = EXTRAS.get(package, "gymnasium")
        raise UnusableError(f"this environment needs {missing}: pip install 'fragmenta[{extra}]'") from error
