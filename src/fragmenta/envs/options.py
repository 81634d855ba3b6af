"""What can be said about an environment besides its name."""

import dataclasses
import json
from typing import Any

from fragmenta.errors import ConfigError
from fragmenta_core.faults import UnusableError
from fragmenta_host.pool import PoolOptions, check

EXAMPLE = """'{"gravity": 9.8}'"""


@dataclasses.dataclass(frozen=True)
class EnvOptions:
    """How an environment is made and, if it is not JAX, how it is stepped."""

    env_args: str = "{}"
    """Arguments of the environment's constructor, as JSON: '{"forward_reward_weight": 2.0}'."""
    wrappers: tuple[str, ...] = ()
    """Gymnasium wrappers as module:Class, the innermost first."""
    stack: int = 1
    """How many of the latest observations are shown at once."""
    env_mode: str = "auto"
    """How environments on the host are stepped: serial, threads, processes, or auto, which measures a step."""
    env_workers: int | None = None
    """Processes or threads that step environments on the host; by default one per core."""
    env_restarts: int = 0
    """How many faults of environments on the host are answered by starting them anew; then the run ends."""
    env_timeout: float = 60.0
    """Seconds that a step of environments on the host may take."""

    def arguments(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        try:
            found = json.loads(self.env_args)
        except json.JSONDecodeError as error:
            raise ConfigError(f"env_args is '{self.env_args}', which is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise ConfigError(f"env_args is '{self.env_args}': it must be a JSON object, as in {EXAMPLE}")
        return found

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        if self.stack < 1:
            raise ConfigError(f"stack is {self.stack}: it must be at least 1")

    def pool(self) -> PoolOptions:
        """Those that concern environments on the host."""
        options = PoolOptions(self.env_mode, self.env_workers, self.env_restarts, self.env_timeout)
        try:
            check(options)
        except UnusableError as error:
            raise ConfigError(str(error)) from None
        return options

    def only_for_hosts(self) -> list[str]:
        """The options set here that mean nothing to an environment in JAX."""
        plain = EnvOptions(stack=self.stack)
        names = [field.name for field in dataclasses.fields(EnvOptions)]
        return [name for name in names if getattr(self, name) != getattr(plain, name)]
