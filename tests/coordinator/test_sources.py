"""Ownership of values: small algorithms whose state has known owners."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fragmenta import Algorithm, Cluster, Environment, Fragment, stage, trace
from fragmenta.coordinator.place import Placement, place
from fragmenta.coordinator.sources import Ownership, ownership_of, prefer
from fragmenta.graph import Loop

CLUSTER = Cluster(("cpu:0", "cpu:1"))
RED, BLUE = Fragment("red", ("warm",), ("cpu:0",)), Fragment("blue", ("cool",), ("cpu:1",))
BOTH = Fragment("both", ("warm", "cool"), ("cpu:0",))


@dataclasses.dataclass(frozen=True)
class Recipe(Algorithm):
    """State `a`, `b`, `c`; subclasses compute the next values with the stages `warm` and `cool`."""

    num_envs: int = 4

    def init(self, env: Environment, key: jax.Array) -> dict[str, jax.Array]:
        return {name: jnp.zeros(self.num_envs) for name in "abc"}

    def params(self, state: dict[str, jax.Array]) -> jax.Array:
        return state["a"]

    @stage
    def warm(self, x: jax.Array) -> jax.Array:
        return jnp.sin(x)

    @stage
    def cool(self, x: jax.Array) -> jax.Array:
        return jnp.cos(x)

    def iterate(self, env: Environment, state: dict[str, jax.Array]) -> tuple[Any, dict[str, jax.Array]]:
        state = self.next(**state)
        return state, {"sum": state["a"] + state["b"]}

    def next(self, a: jax.Array, b: jax.Array, c: jax.Array) -> dict[str, jax.Array]:
        raise NotImplementedError


def placed(algorithm: Algorithm, *fragments: Fragment) -> Placement:
    return place(trace(algorithm, "ProbeConstant"), fragments, CLUSTER)


def owners(placement: Placement) -> dict[str, str | None]:
    ownership, graph = ownership_of(placement), placement.graph
    return {name: ownership.owner[v.id] for name, v in zip(graph.state_names, graph.state_inputs, strict=True)}


def only_loop(placement: Placement) -> tuple[Loop, Ownership]:
    (loop,) = [node for node in placement.graph.block.walk() if isinstance(node, Loop)]
    return loop, ownership_of(placement)


class Apart(Recipe):
    def next(self, a, b, c):
        return {"a": self.warm(a), "b": self.cool(b), "c": c + 1}


def test_state_belongs_to_the_fragment_whose_stage_writes_it() -> None:
    assert owners(placed(Apart(), RED, BLUE)) == {"a": "red", "b": "blue", "c": None}
    assert owners(placed(Apart(), BOTH)) == {"a": "both", "b": "both", "c": None}


def test_values_are_made_of_the_stages_behind_them() -> None:
    placement = placed(Apart(), RED, BLUE)
    fragments, graph = ownership_of(placement).fragments, placement.graph
    after = dict(zip(graph.state_names, graph.state_outputs, strict=True))
    assert fragments[after["a"].id] == {"red"}
    assert fragments[after["b"].id] == {"blue"}
    assert fragments[after["c"].id] == frozenset()
    assert fragments[graph.metrics[0].id] == {"red", "blue"}


class Crossed(Recipe):
    def next(self, a, b, c):
        return {"a": self.cool(a), "b": self.warm(self.cool(b)), "c": self.warm(a) * 2 + 1}


def test_a_stage_hides_the_source_of_its_inputs() -> None:
    assert owners(placed(Crossed(), RED, BLUE)) == {"a": "blue", "b": "red", "c": "red"}


class Chained(Recipe):
    def next(self, a, b, c):
        return {"a": self.warm(c), "b": a * 2, "c": b + self.cool(b) * 0}


class Rotated(Recipe):
    def next(self, a, b, c):
        return {"a": self.warm(a), "b": a + 1, "c": b + 1}


def test_glue_passes_on_the_source_of_state() -> None:
    """`b` is glue of `a`, and `c` is glue of `b`: both come from the stage that writes `a`."""
    assert owners(placed(Rotated(), RED, Fragment("idle", (), ("cpu:1",)))) == dict.fromkeys("abc", "red")


def test_of_two_writers_the_one_without_replicas_owns_the_value() -> None:
    many = dataclasses.replace(RED, devices=("cpu:0", "cpu:1"), replicas=2, axis="envs")
    assert owners(placed(Chained(), RED, BLUE)) == {"a": "red", "b": "red", "c": "red"}
    assert owners(placed(Chained(), many, BLUE)) == {"a": "red", "b": "red", "c": "blue"}


def test_prefer_takes_a_fragment_without_replicas_and_otherwise_the_first() -> None:
    many = dataclasses.replace(RED, devices=("cpu:0", "cpu:1"), replicas=2, axis="envs")
    graph = trace(Apart(), "ProbeConstant")
    assert prefer(Placement(graph, (many, BLUE)), frozenset({"red", "blue"})) == "blue"
    assert prefer(Placement(graph, (many, BLUE)), frozenset({"red"})) == "red"
    assert prefer(Placement(graph, (RED, BLUE)), frozenset({"red", "blue"})) == "red"
    assert prefer(Placement(graph, (BLUE, RED)), frozenset({"red", "blue"})) == "blue"


class Exchanged(Recipe):
    def next(self, a, b, c):
        return {"a": b, "b": a, "c": self.warm(self.cool(c))}


def test_state_that_only_changes_places_has_no_owner() -> None:
    assert owners(placed(Exchanged(), RED, BLUE)) == {"a": None, "b": None, "c": "red"}


class Looped(Recipe):
    """Carries: one written by `warm`, one written by `cool` from it, and a counter in glue."""

    def next(self, a, b, c):
        def body(carry, time):
            a, b, count = carry
            a = self.warm(a + time)
            return (a, self.cool(a + b), count + 1), (a * 2, count * 3, a + self.cool(b))

        (a, b, count), (doubled, counts, mixed) = jax.lax.scan(body, (a, b, c), jnp.arange(3.0))
        return {"a": a + jnp.sum(mixed, 0) * 0, "b": b + jnp.sum(doubled, 0) * 0, "c": count + jnp.sum(counts, 0)}


def test_carries_belong_to_the_stages_within_the_loop() -> None:
    loop, ownership = only_loop(placed(Looped(), RED, BLUE))
    owners_of_carries = [ownership.owner[carry.id] for carry in loop.carry_params]
    assert sorted(owners_of_carries, key=str) == sorted(["red", "blue", None], key=str)
    finals = {
        ownership.owner[p.id]: ownership.fragments[f.id] for p, f in zip(loop.carry_params, loop.finals, strict=True)
    }
    assert finals == {"red": {"red"}, "blue": {"blue"}, None: frozenset()}
    stacked = {ownership.fragments[value.id] for value in loop.stacked}
    assert stacked == {frozenset({"red"}), frozenset(), frozenset({"red", "blue"})}


def test_state_after_a_loop_has_the_source_of_the_stacked_outputs() -> None:
    assert owners(placed(Looped(), RED, BLUE)) == {"a": "red", "b": "red", "c": None}


class GlueCarry(Recipe):
    """A carry changed by glue only, which starts from the output of a stage before the loop."""

    def next(self, a, b, c):
        def body(carry, time):
            scaled, written = carry
            return (scaled * 0.5, self.cool(written)), None

        (scaled, written), _ = jax.lax.scan(body, (self.warm(a), b), jnp.arange(2.0))
        return {"a": scaled, "b": written, "c": c}


def test_a_glue_carry_has_the_source_of_its_start_value() -> None:
    placement = placed(GlueCarry(), RED, BLUE)
    loop, ownership = only_loop(placement)
    carried = {
        ownership.owner[p.id]: ownership.fragments[f.id] for p, f in zip(loop.carry_params, loop.finals, strict=True)
    }
    assert carried == {None: {"red"}, "blue": {"blue"}}
    assert owners(placement) == {"a": "red", "b": "blue", "c": None}


class CarriesInTurn(Recipe):
    """Carries that glue rotates: after a few rounds each comes from the stage that writes one of them."""

    def next(self, a, b, c):
        def body(carry, time):
            first, second, third = carry
            return (self.warm(first), first + 1, second + 1), third

        (first, second, third), thirds = jax.lax.scan(body, (a, b, c), jnp.arange(4.0))
        return {"a": first, "b": second + jnp.sum(thirds, 0), "c": third + self.cool(third) * 0}


def test_rotated_carries_have_the_stage_behind_them_as_source() -> None:
    loop, ownership = only_loop(placed(CarriesInTurn(), RED, BLUE))
    assert [ownership.owner[carry.id] for carry in loop.carry_params] == ["red", "red", "red"]
    assert [ownership.fragments[value.id] for value in (*loop.finals, *loop.stacked)] == [{"red"}] * 4


class LoopInLoop(Recipe):
    def next(self, a, b, c):
        def inner(carry, time):
            return self.warm(carry + time), carry

        def outer(carry, time):
            first, second = carry
            first, path = jax.lax.scan(inner, first, jnp.arange(2.0))
            return (first, self.cool(second) + jnp.sum(path, 0) * 0), jnp.max(path, 0)

        (first, second), highest = jax.lax.scan(outer, (a, b), jnp.arange(2.0))
        return {"a": first, "b": second, "c": jnp.max(highest, 0)}


def test_a_loop_within_a_loop() -> None:
    placement = placed(LoopInLoop(), RED, BLUE)
    assert owners(placement) == {"a": "red", "b": "red", "c": "red"}
    loops = [node for node in placement.graph.block.walk() if isinstance(node, Loop)]
    ownership = ownership_of(placement)
    assert {ownership.owner[p.id] for loop in loops for p in loop.carry_params} == {"red"}
    many = dataclasses.replace(RED, devices=("cpu:0", "cpu:1"), replicas=2, axis="envs")
    assert owners(placed(LoopInLoop(), many, BLUE)) == {"a": "red", "b": "blue", "c": "red"}
