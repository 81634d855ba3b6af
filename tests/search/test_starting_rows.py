"""Initial states contain no batched decompositions: on few cores, those can wait for each other forever."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import pytest

from fragmenta import MAPPO, PPO, make
from fragmenta.search.program import SweepProgram
from fragmenta.search.variants import stacked
from fragmenta.training.seeds import Seeds


def sweep() -> Any:
    algorithm = PPO()
    program = SweepProgram(algorithm, ("learning_rate",), make("CartPole-v1"))
    numbers = stacked([algorithm] * 3, program.fields)
    return jax.make_jaxpr(program.init)(numbers, jax.random.split(jax.random.key(0), 3))


def seeds() -> Any:
    several = Seeds(inner=PPO(), seeds=(0, 1, 2))
    return jax.make_jaxpr(lambda key: several.init(make("CartPole-v1"), key))(jax.random.key(0))


def team() -> Any:
    return jax.make_jaxpr(lambda key: MAPPO(shared=False).init(make("ProbeTeam"), key))(jax.random.key(0))


@pytest.mark.parametrize("initial", [sweep, seeds, team])
def test_rows_are_decomposed_one_at_a_time(initial: Callable[[], Any]) -> None:
    ranks = [
        equation.invars[0].aval.ndim
        for equation in _equations(initial().jaxpr)
        if equation.primitive.name in ("geqrf", "qr", "householder_product")
    ]
    assert ranks
    assert set(ranks) == {2}


def _equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _equations(inner)
