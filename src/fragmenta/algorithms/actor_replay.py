"""Shared by off-policy algorithms for continuous actions: an actor, critics of its actions, the range of actions."""

import dataclasses
from typing import Any, ClassVar

import jax
import numpy as np

from fragmenta.algorithms.limits import COUNT, Limit
from fragmenta.algorithms.off_policy import OffPolicy
from fragmenta.envs import Box, Discrete, Environment
from fragmenta.errors import ConfigError
from fragmenta.nn.relu import ReluMLP

CRITICS = ("critic", "encoder", "critic_encoder")
"""What the critics' loss trains: an actor uses the encoder as it is, because its own loss would spoil it."""


@dataclasses.dataclass(frozen=True)
class ActorReplay(OffPolicy):
    """An actor and critics on replayed steps; networks see actions between -1 and 1."""

    limits: ClassVar[dict[str, Limit]] = {"critics": COUNT, "critic_hidden": COUNT}
    without_memory: ClassVar[str] = "its replay holds single steps; use ppo, or --stack for the latest observations"

    total_steps: int = 50_000
    horizon: int = 1
    updates: int = 4
    learning_rate: float = 1e-3
    max_grad_norm: float = 100.0
    hidden: tuple[int, ...] = (256, 256)
    batch_size: int = 256
    buffer_size: int = 1_000_000
    tau: float = 0.005
    critics: int = 2
    """Independent critics; targets take the lowest of their values."""
    critic_hidden: tuple[int, ...] = ()
    """Hidden layer widths of the critics; the same as those of the actor if there are none here."""
    layer_norm: bool = False
    """Normalise the layers of all networks."""
    critic_only: tuple[str, ...] = ()
    """Parts of the observations that only the critics see, such as the simulator's state."""

    @property
    def critic_parts(self) -> tuple[str, ...]:
        return self.critic_only

    def validate(self, env: Environment) -> None:
        super().validate(env)
        self.check_actions(env)

    def check_actions(self, env: Environment) -> None:
        """Raise ConfigError unless the algorithm can act in the environment."""
        space = env.action_space
        if not isinstance(space, Box) or not space.dtype.startswith("float"):
            problem = f"{type(self).__name__} does not support action space {space}: it takes Box of a float type"
            raise ConfigError(f"{problem}; use {'dqn' if isinstance(space, Discrete) else 'ppo'}")
        if not np.isfinite([space.low, space.high]).all():
            problem = f"actions of {env.title} are between {space.low:g} and {space.high:g}"
            raise ConfigError(f"{problem}: {type(self).__name__} needs limits; wrap the environment, or use ppo")

    def to_env(self, env: Environment, action: jax.Array) -> jax.Array:
        """Actions between -1 and 1 as the environment takes them."""
        space = env.action_space
        assert isinstance(space, Box)
        scaled = space.low + 0.5 * (action + 1.0) * (space.high - space.low)
        return scaled.reshape(*action.shape[:-1], *space.shape).astype(space.dtype)

    def from_env(self, env: Environment, action: jax.Array) -> jax.Array:
        """The inverse of `to_env`."""
        space = env.action_space
        assert isinstance(space, Box)
        scaled = 2.0 * (action - space.low) / (space.high - space.low) - 1.0
        return scaled.reshape(*scaled.shape[: scaled.ndim - len(space.shape)], -1)

    def action_size(self, env: Environment) -> int:
        """How many numbers an action is."""
        space = env.action_space
        assert isinstance(space, Box)
        return int(np.prod(space.shape))

    def actor_outputs(self, env: Environment, params: Any, observation: Any, outputs: int) -> Any:
        """What the actor says about every entry of an action; its encoder is not trained by it."""
        features = jax.lax.stop_gradient(self.encode(env, params, observation).actor)
        return self.actor_net(outputs * self.action_size(env)).apply(params["actor"], features)

    def critic_net(self, outputs: int) -> ReluMLP:
        """The architecture of the critics."""
        return ReluMLP(self.critic_hidden or self.hidden, outputs, self.critics, self.layer_norm, self.compute_type)

    def actor_net(self, outputs: int) -> ReluMLP:
        """The architecture of the actor."""
        return ReluMLP(self.hidden, outputs, 0, self.layer_norm, self.compute_type)


def of_critics(params: Any) -> dict[str, Any]:
    """The parameters that the critics' loss trains."""
    return {name: params[name] for name in CRITICS if name in params}


def noise_each(keys: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Normal noise for a batch of that shape, whose second axis is the environments, each with its own key."""
    rows, _, *rest = shape
    return jax.vmap(lambda key: jax.random.normal(key, (rows, *rest)), out_axes=1)(keys)
