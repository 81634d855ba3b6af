"""What every algorithm has."""

import dataclasses
from typing import Any, ClassVar

import jax

from fragmenta.algorithms.axis import Axis
from fragmenta.envs import Environment, World
from fragmenta.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """A frozen dataclass of hyper-parameters with `init` and `iterate`; its fields are its command-line flags.

    `iterate` is one training iteration as pure JAX. What it computes for all environments is what it means, however
    they are divided among replicas.
    """

    allows_lag: ClassVar[bool] = False
    """Whether it learns well from actions that older parameters chose, as asynchronous policies and `lag` bring."""

    num_envs: int = 4
    """Environments in total, over all replicas."""
    total_steps: int = 500_000
    """Environment steps in total."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let instances pass through JAX functions as constants, stages included."""
        super().__init_subclass__(**kwargs)
        jax.tree_util.register_static(cls)

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps that one `iterate` takes, over all environments."""
        return self.num_envs

    def axes(self, env: Environment) -> tuple[Axis, ...]:
        """The axes along which fragments may be replicated; a subclass may add its own, such as a population."""
        return (
            Axis("envs", "environments", self.num_envs, lambda n: (dataclasses.replace(self, num_envs=n), env)),
            Axis("agents", "agents", env.num_agents, lambda n: (self, env.with_agents(n)), hidden=True),
        )

    def validate(self, env: Environment) -> None:
        """Raise ConfigError if these hyper-parameters cannot train on that environment."""
        for name in ("num_envs", "total_steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be at least 1")

    def init(self, env: Environment, key: jax.Array) -> Any:
        """The state before the first iteration: a pytree with the world, the learner, the keys."""
        raise NotImplementedError

    def iterate(self, env: Environment, state: Any) -> tuple[Any, dict[str, jax.Array]]:
        """One training iteration: the next state, and metrics by name."""
        raise NotImplementedError

    def with_new_episodes(self, saved: Any, fresh: Any) -> Any:
        """A saved state whose environments could not be saved, with those of a fresh state in place of its own."""

        def is_world(node: Any) -> bool:
            return isinstance(node, World)

        return jax.tree.map(lambda old, new: new if is_world(new) else old, saved, fresh, is_leaf=is_world)

    def params(self, state: Any) -> Any:
        """The trained parameters within a state."""
        return state.learner.params

    def decide(
        self, env: Environment, params: Any, observation: Any, alive: Any, memory: Any, keys: jax.Array | None
    ) -> tuple[Any, Any]:
        """After training: an action for every observation, drawn with the keys or without them the likeliest one, and
        what is remembered after it. `params` are those of `params`, `alive` is the world's, for teams."""
        raise ConfigError(f"{type(self).__name__} does not say how it acts after training: write its method decide")

    def fresh_memory(self, count: int) -> Any:
        """What is remembered at the start of so many episodes: nothing, unless a subclass says otherwise."""
        return ()
