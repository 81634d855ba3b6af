"""The base class of all algorithms."""

import dataclasses
from typing import Any, ClassVar

import jax

from fragmenta.algorithms.axis import Axis
from fragmenta.algorithms.limits import COUNT, Limit, check_limits
from fragmenta.envs import Environment, World
from fragmenta.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class _Marker:
    """Stands for a leaf of the state, to see where it goes."""

    place: int


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """A frozen dataclass of hyper-parameters with `init` and `iterate`; its fields are its command-line flags.

    `iterate` is one training iteration over all environments as pure JAX; dividing them does not change its result.
    """

    allows_lag: ClassVar[bool] = False
    """Whether it tolerates actions chosen by older parameters, as with asynchronous distribution policies or `lag`."""

    limits: ClassVar[dict[str, Limit]] = {"num_envs": COUNT, "total_steps": COUNT}
    """The range of each hyper-parameter, checked by `validate`; those of base classes are checked, too."""

    used_if: ClassVar[dict[str, dict[str, Any]]] = {}
    """Hyper-parameters that matter only if others have these values; those of base classes count, too."""

    traced_fields: ClassVar[tuple[str, ...]] = ()
    """The hyper-parameters that are data in JAX functions, not constants; set for a class made to change them."""

    num_envs: int = 4
    """Environments in total."""
    total_steps: int = 500_000
    """Environment steps in total."""

    def __init_subclass__(cls, traced: tuple[str, ...] = (), **kwargs: Any) -> None:
        """Let instances pass through JAX functions, stages included, as constants; only fields in `traced` are data and
        may differ between the rows of a `vmap`."""
        super().__init_subclass__(**kwargs)
        cls.traced_fields = traced
        if not traced:
            jax.tree_util.register_static(cls)
            return
        constant = [field.name for field in dataclasses.fields(cls) if field.init and field.name not in traced]
        jax.tree_util.register_dataclass(cls, data_fields=traced, meta_fields=constant)

    @property
    def steps_per_iteration(self) -> int | None:
        """Environment steps of one `iterate`, over all environments. They are counted in the traced program; override
        this only if a `while_loop` decides how often environments step."""
        return None

    def axes(self, env: Environment) -> tuple[Axis, ...]:
        """The axes along which the loop may be divided; a subclass may add its own, such as a population."""
        return (
            Axis("envs", "environments", self.num_envs, lambda n: (dataclasses.replace(self, num_envs=n), env)),
            Axis("agents", "agents", env.num_agents, lambda n: (self, env.with_agents(n)), hidden=True),
        )

    @property
    def rebuildable(self) -> tuple[str, ...]:
        """Fields of the state that fill anew as training goes on, such as a replay: checkpoints leave them out, unless
        `save_replay` is set."""
        return ()

    @property
    def remark(self) -> str:
        """What to say when a run starts that these hyper-parameters make useless; empty if there is nothing to say."""
        return ""

    @property
    def product_precision(self) -> str | None:
        """JAX's precision of matrix products in training, where it is not the usual one."""
        return None

    def validate(self, env: Environment) -> None:
        """Raise ConfigError if these hyper-parameters cannot train on this environment."""
        check_limits(self)

    def init(self, env: Environment, key: jax.Array) -> Any:
        """The state before the first iteration: a pytree of world, learner and keys."""
        raise NotImplementedError

    def iterate(self, env: Environment, state: Any) -> tuple[Any, dict[str, jax.Array]]:
        """One training iteration: the next state, and metrics by name."""
        raise NotImplementedError

    def at(self, state: Any) -> "Algorithm":
        """The algorithm for the iteration from this state on: with those hyper-parameters that change over a run."""
        return self

    def with_new_episodes(self, saved: Any, fresh: Any) -> Any:
        """A saved state with the environments of a fresh one, for environments whose state cannot be saved."""

        def is_world(node: Any) -> bool:
            return isinstance(node, World)

        return jax.tree.map(lambda old, new: new if is_world(new) else old, saved, fresh, is_leaf=is_world)

    def params(self, state: Any) -> Any:
        """The trained parameters within a state: by default those of its `learner`."""
        if not hasattr(state, "learner"):
            name, parts = type(self).__name__, ", ".join(getattr(state, "_fields", ())) or type(state).__name__
            raise ConfigError(f"the state of {name} has no learner ({parts}): implement its params(state)")
        return state.learner.params

    def with_params(self, state: Any, params: Any) -> Any:
        """A state with the parameters of another run. Override it if `params` computes what it returns, or if more of
        the state follows from the parameters, such as a target network."""
        leaves, structure = jax.tree.flatten(state)
        markers = [_Marker(place) for place in range(len(leaves))]
        try:
            marked = jax.tree.leaves(self.params(jax.tree.unflatten(structure, markers)))
            places = [marker.place for marker in marked]
        except Exception as error:
            problem = f"{type(self).__name__}.params computes what it returns ({type(error).__name__})"
            raise ConfigError(f"{problem}: implement its with_params() to start from another run") from error
        for place, leaf in zip(places, jax.tree.leaves(params), strict=True):
            leaves[place] = leaf
        return jax.tree.unflatten(structure, leaves)

    def decide(
        self, env: Environment, params: Any, observation: Any, alive: Any, memory: Any, keys: jax.Array | None
    ) -> tuple[Any, Any]:
        """Act after training: an action per observation, sampled with `keys` or the most likely one without them, and
        the next memory. `params` are those that `params` returns; `alive` is the world's, for teams."""
        raise ConfigError(f"{type(self).__name__} does not define how to act after training: implement its decide()")

    def fresh_memory(self, count: int, agents: int = 1) -> Any:
        """The memory at the start of `count` episodes of so many agents: empty, unless a subclass overrides it."""
        return ()
