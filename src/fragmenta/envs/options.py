"""Options of an environment besides its name."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from fragmenta.errors import ConfigError
from fragmenta_core.faults import UnusableError
from fragmenta_host.options import PoolOptions, check

EXAMPLE = """'{"gravity": 9.8}'"""


@dataclasses.dataclass(frozen=True)
class EnvOptions:
    """How an environment is made and, for host environments, how it is stepped."""

    env_args: str | Mapping[str, Any] = "{}"
    """Constructor arguments of the environment, as JSON: '{"forward_reward_weight": 2.0}'. In Python also a dict."""
    wrappers: tuple[str, ...] = ()
    """Gymnasium wrappers as module:Class, innermost first."""
    stack: int = 1
    """How many of the latest observations to stack."""
    env_mode: str = "auto"
    """How host environments are stepped: serial, threads, processes, or auto: serial or processes, as measured."""
    env_workers: int | None = None
    """Processes or threads that step host environments; by default one per core."""
    env_restarts: int = 0
    """Restart host environments after up to this many faults; the next one ends the run."""
    env_timeout: float = 60.0
    """Maximum duration of a step of host environments, in seconds."""

    def arguments(self) -> dict[str, Any]:
        """The constructor arguments, parsed."""
        assert isinstance(self.env_args, str)
        try:
            arguments = json.loads(self.env_args)
        except json.JSONDecodeError as error:
            raise ConfigError(f"env_args is '{self.env_args}', which is not JSON: {error}") from None
        if not isinstance(arguments, dict):
            raise ConfigError(f"env_args is '{self.env_args}': it must be a JSON object, as in {EXAMPLE}")
        return arguments

    def __post_init__(self) -> None:
        """Reject invalid values, and keep the arguments as JSON, as they are saved with a run."""
        if not isinstance(self.env_args, str):
            object.__setattr__(self, "env_args", _as_json(self.env_args))
        if self.stack < 1:
            raise ConfigError(f"stack is {self.stack}: it must be at least 1")

    def pool(self) -> PoolOptions:
        """The options for host environments."""
        options = PoolOptions(self.env_mode, self.env_workers, self.env_restarts, self.env_timeout)
        try:
            check(options)
        except UnusableError as error:
            raise ConfigError(str(error)) from None
        return options

    def host_only(self) -> list[str]:
        """The options set here that do not apply to JAX environments."""
        defaults = EnvOptions(stack=self.stack)
        names = [field.name for field in dataclasses.fields(EnvOptions)]
        return [name for name in names if getattr(self, name) != getattr(defaults, name)]


def _as_json(arguments: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(arguments))
    except (TypeError, ValueError) as error:
        advice = "pass a function that makes the environment, as in lambda: MyEnv(...)"
        raise ConfigError(f"env_args is {arguments!r:.80}, which is not plain data: {error}; {advice}") from None
