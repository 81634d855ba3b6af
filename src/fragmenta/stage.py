"""What an algorithm says about itself: which functions are stages, and which values must agree among replicas.

Outside Fragmenta all of it is ordinary JAX: a stage is `jax.jit` under a prefixed name, a mark is the identity.
Inside a program that runs replicas together, the replica axis has a name and a mark is the collective over it.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax
import optax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

STAGE_PREFIX = "stage:"
MARK_PREFIX = "mark:"
ROWS_PREFIX = "rows:"
AXES = ("envs", "agents")
"""Names of the axes along which fragments are replicated; one is bound while replicas along it run as one program."""

Function = TypeVar("Function", bound=Callable[..., Any])
Tree = TypeVar("Tree")


def stage(function: Function) -> Function:
    """Mark a pure function or method as a part of the training loop that a policy can place."""

    @functools.wraps(function)
    def named(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    named.__name__ = named.__qualname__ = STAGE_PREFIX + function.__name__
    return cast(Function, jax.jit(named))


def row_wise(function: Function, static: tuple[str, ...] = ()) -> Function:
    """Say that each row of a function's results depends on that row of its arguments alone.

    It may then be computed another way for many rows than for few, and replicas still agree on it.
    """

    @functools.wraps(function)
    def named(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    named.__name__ = named.__qualname__ = ROWS_PREFIX + function.__name__
    return cast(Function, jax.jit(named, static_argnames=static))


def all_mean(tree: Tree, over: str | None = None) -> Tree:
    """Average a value over all replicas, or only over those along one axis; the identity with one replica."""
    return jax.tree.map(lambda x: _mark(x, "mean", 0, over), tree)


def all_sum(tree: Tree, over: str | None = None) -> Tree:
    """Add a value up over all replicas, or only over those along one axis; the identity with one replica."""
    return jax.tree.map(lambda x: _mark(x, "sum", 0, over), tree)


def all_gather(tree: Tree, axis: int = 0, over: str | None = None) -> Tree:
    """Join the replicas' parts of a value along the dimension `axis`; the identity with one replica."""
    return jax.tree.map(lambda x: _mark(x, "gather", axis, over), tree)


def sync_gradients() -> optax.GradientTransformation:
    """Average gradients over all replicas: the first link of an optimizer chain that may be replicated."""
    return optax.GradientTransformation(
        init=lambda params: optax.EmptyState(),
        update=lambda updates, state, params=None: (all_mean(updates), state),
    )


_COLLECTIVES: dict[str, Callable[[jax.Array, str, int], jax.Array]] = {
    "mean": lambda x, name, axis: jax.lax.pmean(x, name),
    "sum": lambda x, name, axis: jax.lax.psum(x, name),
    "gather": lambda x, name, axis: jax.lax.all_gather(x, name, axis=axis, tiled=True),
}


def _mark(x: Any, op: str, axis: int, over: str | None) -> Any:
    if over not in (None, *AXES):
        raise ValueError(f"over is '{over}': choose one of {', '.join(AXES)}, or None for all replicas")
    name = next((name for name in AXES if over in (None, name) and _bound(name)), None)
    if name is None:
        return mark_p.bind(jax.numpy.asarray(x), op=op, axis=axis, over=over)

    def collective(x: jax.Array) -> jax.Array:
        return _COLLECTIVES[op](x, name, axis)

    # One named call, so that the program with replicas has the same equations as the one without.
    collective.__name__ = MARK_PREFIX + op
    return jax.jit(collective)(x)


def _bound(name: str) -> bool:
    try:
        jax.lax.axis_size(name)
    except NameError:
        return False
    return True


# The identity as a primitive, because JAX forwards the output of a plain identity and the mark would vanish.
mark_p = Primitive("mark")
mark_p.def_impl(lambda x, **_: x)
mark_p.def_abstract_eval(lambda x, **_: x)
mlir.register_lowering(mark_p, lambda ctx, x, **_: [x])
ad.deflinear(mark_p, lambda cotangent, **params: [mark_p.bind(cotangent, **params)])


def _batch_mark(args: Any, dims: Any, *, op: str, axis: int, over: str | None) -> tuple[Any, Any]:
    (x,), (dim,) = args, dims
    return mark_p.bind(x, op=op, axis=axis + (dim <= axis), over=over), dim


batching.primitive_batchers[mark_p] = _batch_mark
