"""Shared by off-policy algorithms that can learn the distribution of the return instead of its mean."""

import dataclasses
from typing import ClassVar

from fragmenta.algorithms.limits import COUNT, Limit
from fragmenta.algorithms.off_policy import OffPolicy
from fragmenta.envs import Environment
from fragmenta.errors import ConfigError
from fragmenta.rl.value_targets import RETURN_KINDS, ReturnForm


@dataclasses.dataclass(frozen=True)
class Distributional(OffPolicy):
    """Values are means of the return, or means of a learned distribution of it."""

    limits: ClassVar[dict[str, Limit]] = {"atoms": COUNT}

    distribution: str = "none"
    """What is learned of the return: none (its mean), c51 (probabilities on atoms), quantile (quantiles)."""
    atoms: int = 51
    """Atoms or quantiles, with a distribution."""
    value_range: tuple[float, float] = (0.0, 100.0)
    """The lowest and the highest return that the atoms of c51 cover."""

    def validate(self, env: Environment) -> None:
        super().validate(env)
        if self.distribution not in RETURN_KINDS:
            raise ConfigError(f"distribution is '{self.distribution}': choose one of {', '.join(RETURN_KINDS)}")
        low, high = self.value_range
        if not low < high or self.atoms < 2:
            problem = f"value_range is {low:g} to {high:g} with {self.atoms} atoms"
            raise ConfigError(f"{problem}: it needs a lower and a higher number, and two atoms or more")

    @property
    def return_form(self) -> ReturnForm:
        """What networks say about a return."""
        return ReturnForm(self.distribution, self.atoms, self.value_range)
