"""Environment specifications, and the adapters of the packages that make them."""

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

from fragmenta_core.faults import UnusableError
from fragmenta_core.spaces import MASK, Discrete, MultiDiscrete, as_vector
from fragmenta_host.makers import BoundHere, Maker, Pickled
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
    maker: Maker | None = None
    """For an environment that is a Python object; package and name then only describe it."""
    info_masks: bool = False
    """Whether its infos say which actions are legal, which becomes a part of the observations; found by trying."""

    def __str__(self) -> str:
        return f"{self.package}:{self.name}"

    def __hash__(self) -> int:
        return hash((str(self), repr(self.arguments), self.wrappers, self.stack, self.maker))

    @property
    def is_vector(self) -> bool:
        """Whether the package itself steps many environments at once."""
        return self.maker is None and self.package in VECTORS

    @property
    def bound_here(self) -> BoundHere | None:
        """What keeps the environments in this process, if anything does."""
        return self.maker if isinstance(self.maker, BoundHere) else None

    def to_json(self) -> dict[str, Any]:
        """Convert to a dictionary, to send to an environment process."""
        assert not self.bound_here, "it never leaves this process"
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return fields | {"maker": self.maker.to_json() if isinstance(self.maker, Pickled) else None}

    @staticmethod
    def from_json(data: dict[str, Any]) -> "Spec":
        """The inverse of `to_json`."""
        maker = data["maker"] and Pickled.from_json(data["maker"])
        return Spec(**{**data, "wrappers": tuple(data["wrappers"]), "maker": maker})


def single_maker(spec: Spec) -> Callable[[], Single]:
    """A function that makes one environment; an unknown package is taken as the user's own module."""

    def make() -> Single:
        package = spec.package if spec.maker is None else "gymnasium"
        return _load(SINGLES.get(package, SINGLES["gymnasium"]), package)(spec)

    return make


def sample(spec: Spec) -> Single:
    """One environment, to describe it: with masks of legal actions, if its infos report them."""
    env = single_maker(spec)()
    if not _reports_mask(env):
        return env
    if not spec.bound_here:
        env.close()
    return single_maker(dataclasses.replace(spec, info_masks=True))()


def _reports_mask(env: Single) -> bool:
    """Whether the info of a reset says which actions are legal; UnusableError if it does not say it of each."""
    action = env.description.action
    if env.description.agents is not None or not isinstance(action, Discrete | MultiDiscrete):
        return False
    try:
        _, info = env.reset(0)
        mask = as_vector(info[MASK]) if isinstance(info, dict) and MASK in info else None
    except Exception:
        return False  # the run will fail as well, and report the reset
    expected = action.n if isinstance(action, Discrete) else sum(action.choices)
    if mask is not None and len(mask) != expected:
        problem = f"the info of reset has '{MASK}' with {len(mask)} entries"
        raise UnusableError(f"{problem}, expected one for each of the {expected} choices of {action}")
    return mask is not None


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
