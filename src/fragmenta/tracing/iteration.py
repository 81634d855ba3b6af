"""One training iteration as it runs, and how many steps of environments it takes."""

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fragmenta.algorithms import Algorithm
from fragmenta.envs import Environment, World
from fragmenta.errors import ConfigError
from fragmenta.tracing import jaxprs

Iteration = Callable[[Any], tuple[Any, dict[str, jax.Array]]]
TOTALS = ("finished_episodes", "finished_returns", "finished_lengths")
"""Metrics of every algorithm whose state has a World: episodes that ended in the iteration, sums of their returns and
lengths."""


def iteration(algorithm: Algorithm, env: Environment) -> Iteration:
    """The algorithm's `iterate` as a function of the state, with the episodes that ended in it among the metrics."""

    def run(state: Any) -> tuple[Any, dict[str, jax.Array]]:
        cleared = jax.tree.map(lambda x: x.clear_finished() if _is_world(x) else x, state, is_leaf=_is_world)
        returned = algorithm.at(cleared).iterate(env, cleared)
        if not isinstance(returned, (tuple, list)) or len(returned) != 2 or not isinstance(returned[1], dict):
            name = type(algorithm).__name__
            raise ConfigError(f"{name}.iterate must return a pair: the next state and a dictionary of metrics")
        after, metrics = returned
        return after, _with_episodes(after, metrics)

    return run


def steps_per_iteration(algorithm: Algorithm, counted: int | None) -> int:
    """Steps as counted in the traced program, or as declared where only a run can tell; ConfigError if neither."""
    if counted is not None:
        return counted or algorithm.num_envs
    if algorithm.steps_per_iteration is None:
        name = type(algorithm).__name__
        raise ConfigError(
            f"{name}.iterate steps its environments in a while loop, so that their steps cannot be counted in advance: "
            f"define the property steps_per_iteration of {name}"
        )
    return algorithm.steps_per_iteration


def _with_episodes(state: Any, metrics: dict[str, jax.Array]) -> dict[str, jax.Array]:
    worlds = [node for node in jax.tree.leaves(state, is_leaf=_is_world) if _is_world(node)]
    if not worlds or TOTALS[0] in metrics:  # an algorithm that wraps another has them already
        return metrics
    totals = [[jnp.sum(total) for total in world.finished] for world in worlds]
    sums = {name: functools.reduce(operator.add, parts) for name, *parts in zip(TOTALS, *totals, strict=True)}
    return sums | metrics


def _is_world(node: Any) -> bool:
    return isinstance(node, World)


def environment_steps(closed: Any) -> int | None:
    """Steps of environments in a jaxpr, over all of them; None if a `while` loop decides how often they step.

    Of the branches of a `cond` the longest counts.
    """
    total = 0
    for equation in jaxprs.open_jaxpr(closed)[0].eqns:
        if jaxprs.stage_name(equation) == "step":
            # Every result has a row per environment, and some have nothing else, such as the length of the episode.
            total += min((v.aval.size for v in equation.outvars if getattr(v.aval, "size", 0)), default=0)
            continue
        inside = [environment_steps(inner) for inner in jaxprs.inner_jaxprs(equation)]
        if equation.primitive.name == "while" and any(count != 0 for count in inside):
            return None
        if None in inside:
            return None
        counts = [count for count in inside if count is not None]
        length = equation.params["length"] if equation.primitive.name == "scan" else 1
        total += length * max(counts, default=0)
    return total
