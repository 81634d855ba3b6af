"""Trace a training loop into a graph."""

import contextlib
import functools
import itertools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fragmenta.algorithms import Algorithm, Axis
from fragmenta.envs import Environment
from fragmenta.errors import ConfigError
from fragmenta.graph import Block, Call, Glue, Graph, Loop, Node, Value
from fragmenta.graph.check import check_graph
from fragmenta.graph.layout import Split
from fragmenta.tracing import jaxprs
from fragmenta.tracing.iteration import environment_steps, iteration
from fragmenta.tracing.names import is_in, leaf_name, leaf_names


def trace(algorithm: Algorithm, env: Environment) -> Graph:
    """The graph of one `iterate`: every stage is a Call, every scan that contains a stage a Loop, the rest Glue."""
    return _trace(algorithm, env, frozenset(), {})


def abstract_state(algorithm: Algorithm, env: Environment) -> Any:
    """Shapes and dtypes of the state, without running anything."""
    return jax.eval_shape(lambda: algorithm.init(env, jax.random.key(0)))


def _trace(algorithm: Algorithm, env: Environment, opened: frozenset[str], others: dict[Any, Graph]) -> Graph:
    """Trace, inlining the stages in `opened`. `others` has what was traced at which sizes with which stages opened:
    many distribution policies ask for the same."""
    state = abstract_state(algorithm, env)
    precision = algorithm.product_precision
    with jax.default_matmul_precision(precision) if precision else contextlib.nullcontext():
        closed, shapes = jax.make_jaxpr(iteration(algorithm, env), return_shape=True)(state)
    _check_returned(algorithm, state, shapes)
    tracer = _Tracer(opened)
    block = tracer.block(closed)
    state_names = leaf_names(state)
    for value, name in zip(block.inputs, state_names, strict=True):
        tracer.names[value.id] = name if name.count(".") < 3 else ".".join(name.split(".")[-2:])
    metric_names = leaf_names(shapes[1])
    for value, name in zip(block.outputs[len(state_names) :], metric_names, strict=True):
        tracer.names.setdefault(value.id, name)
    top_stages = dict.fromkeys(name for node in block.walk() if isinstance(node, Call) for name in node.holds)
    nested_stages = dict.fromkeys(name for node in block.walk() if isinstance(node, Call) for name in node.inner)
    axes = {axis.name: axis for axis in algorithm.axes(env)}

    def resized(sizes: dict[str, int], opened: frozenset[str]) -> Graph:
        key = frozenset(sizes.items()), opened
        if key in others:
            return others[key]
        new_algorithm, new_env = algorithm, env
        for name, size in sizes.items():
            if size != axes[name].size:
                axis = next(axis for axis in new_algorithm.axes(new_env) if axis.name == name)
                new_algorithm, new_env = axis.resized(size)
        others[key] = _trace(new_algorithm, new_env, opened, others)
        return others[key]

    graph = Graph(
        block=block,
        steps=environment_steps(closed),
        state_names=state_names,
        rebuildable=frozenset(i for i, name in enumerate(state_names) if is_in(name, algorithm.rebuildable)),
        metric_names=metric_names,
        stages=tuple(dict.fromkeys([*top_stages, *nested_stages])),
        top_stages=tuple(top_stages),
        sizes={name: axis.size for name, axis in axes.items()},
        nouns={name: axis.noun for name, axis in axes.items()},
        opened=opened,
        names=tracer.names,
        retrace=resized,
        splits=functools.cache(lambda name: _splits(axes[name], state)),
        hidden=frozenset(name for name, axis in axes.items() if axis.hidden),
    )
    check_graph(graph)
    return graph


def _check_returned(algorithm: Algorithm, state: Any, shapes: Any) -> None:
    """`iterate` must return a state of the same structure, shapes and dtypes."""
    name = type(algorithm).__name__
    before, after = (dict(jax.tree_util.tree_leaves_with_path(tree)) for tree in (state, shapes[0]))
    for path in [*before, *(path for path in after if path not in before)]:
        old, new = (_text(leaves.get(path)) for leaves in (before, after))
        if old != new:
            leaf = leaf_name(path) or "state"
            mismatch = f"{name}.iterate takes '{leaf}' as {old} and returns it as {new}"
            raise ConfigError(f"{mismatch}: the state must keep its shapes and dtypes")
    if jax.tree.structure(state) != jax.tree.structure(shapes[0]):
        raise ConfigError(
            f"{name}.iterate takes a state of structure {jax.tree.structure(state)} and returns "
            f"{jax.tree.structure(shapes[0])}: return the same structure"
        )


def _text(leaf: Any) -> str:
    return "nothing" if leaf is None else f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def _splits(axis: Axis, state: Any) -> tuple[Split | None, ...]:
    """The dimension of each state leaf that lies along an axis, found by comparing with the state at other sizes of it.

    Any answer is correct, because replicas may hold a value in any layout; this one minimises communication.
    """
    shapes = [tuple(leaf.shape) for leaf in jax.tree.leaves(state)]
    splits: list[Split | None] = [None] * len(shapes)
    for size in (2 * axis.size, 1):
        # An algorithm may reject a size, and an environment may not have more agents.
        with contextlib.suppress(Exception):
            others = [tuple(leaf.shape) for leaf in jax.tree.leaves(abstract_state(*axis.resized(size)))]
            candidates = [_growing(a, b, axis.size, size) for a, b in zip(shapes, others, strict=True)]
            splits = [a or b for a, b in zip(splits, candidates, strict=True)]
    if not any(splits):
        return tuple(Split(shape.index(axis.size)) if axis.size in shape else None for shape in shapes)
    return tuple(splits)


def _growing(shape: tuple[int, ...], other: tuple[int, ...], size: int, other_size: int) -> Split | None:
    if len(shape) != len(other):
        return None
    return next(
        (Split(d) for d, (a, b) in enumerate(zip(shape, other, strict=True)) if a * other_size == b * size and a != b),
        None,
    )


class _Tracer:
    """Numbers values and nodes in program order."""

    def __init__(self, opened: frozenset[str]) -> None:
        self.opened = opened
        self.names: dict[int, str] = {}
        self._ids = itertools.count()

    def block(self, closed: Any) -> Block:
        """A jaxpr as a block."""
        jaxpr, _ = jaxprs.open_jaxpr(closed)
        scope = {variable: self._value(variable.aval) for variable in jaxpr.invars}
        inputs = tuple(scope[variable] for variable in jaxpr.invars)
        nodes: list[Node] = []
        outputs = self._inline(closed, scope, nodes)
        return Block(inputs, tuple(nodes), outputs)

    def _inline(self, closed: Any, scope: dict[Any, Value], nodes: list[Node]) -> tuple[Value, ...]:
        """Append the nodes of a jaxpr whose inputs are in scope, and return its outputs."""
        jaxpr, constants = jaxprs.open_jaxpr(closed)
        for variable, constant in zip(jaxpr.constvars, constants, strict=True):
            scope[variable] = self._constant(variable.aval, constant, nodes)
        for equation in jaxpr.eqns:
            self._equation(jaxpr, equation, scope, nodes)
        return tuple(self._read(atom, scope, nodes) for atom in jaxpr.outvars)

    def _equation(self, jaxpr: Any, equation: Any, scope: dict[Any, Value], nodes: list[Node]) -> None:
        name, within = jaxprs.stage_name(equation), jaxprs.stages_within(equation)
        if name and name not in self.opened:
            self._call(jaxpr, equation, scope, nodes, name, (name,), within)
        elif not within and not name:
            self._glue(jaxpr, equation, scope, nodes)
        elif equation.primitive.name == "scan":
            self._loop(equation, scope, nodes)
        elif (called := jaxprs.called_jaxpr(equation)) is not None:
            inner = jaxprs.open_jaxpr(called)[0]
            arguments = [self._read(atom, scope, nodes) for atom in equation.invars]
            results = self._inline(called, dict(zip(inner.invars, arguments, strict=True)), nodes)
            scope.update(zip(equation.outvars, results, strict=True))
        else:
            # A cond or a while cannot be split: how often each of its stages runs is known only at run time.
            label = f"{equation.primitive.name}({', '.join(within)})"
            self._call(jaxpr, equation, scope, nodes, label, within, ())

    def _glue(self, jaxpr: Any, equation: Any, scope: dict[Any, Value], nodes: list[Node]) -> None:
        inputs, outputs, apply, origin = self._bound(jaxpr, equation, scope)
        label = equation.params.get("name", equation.primitive.name)
        nodes.append(Glue(next(self._ids), str(label), inputs, outputs, apply, origin))

    def _call(
        self,
        jaxpr: Any,
        equation: Any,
        scope: dict[Any, Value],
        nodes: list[Node],
        stage: str,
        holds: tuple[str, ...],
        inner: tuple[str, ...],
    ) -> None:
        inputs, outputs, apply, origin = self._bound(jaxpr, equation, scope)
        effects = bool(equation.effects)
        host, per_environment = jaxprs.host_function(equation, list(origin.inputs), list(origin.outputs))
        nodes.append(
            Call(next(self._ids), stage, inputs, outputs, apply, inner, holds, effects, host, per_environment, origin)
        )
        called = jaxprs.called_jaxpr(equation)
        if called is None:
            return
        results = zip(equation.outvars, jaxprs.result_names(called), strict=True)
        for variable, path in results:
            if not jaxprs.is_dropped(variable) and _last_name(path) not in ("", "result"):
                self.names.setdefault(scope[variable].id, _last_name(path))
        # Argument names are the fallback for results that the producer leaves unnamed, often as a bare position.
        for atom, argument in zip(equation.invars, jaxprs.argument_names(called), strict=True):
            if not jaxprs.is_literal(atom) and argument:
                self.names.setdefault(scope[atom].id, _last_name(argument))

    def _loop(self, equation: Any, scope: dict[Any, Value], nodes: list[Node]) -> None:
        parts = jaxprs.scan_parts(equation)
        arguments = tuple(self._read(atom, scope, nodes) for atom in equation.invars)
        split = parts.constants, parts.constants + parts.carries
        node_id = next(self._ids)
        body = self.block(equation.params["jaxpr"])
        outputs = tuple(self._value(variable.aval) for variable in equation.outvars)
        scope.update(zip(equation.outvars, outputs, strict=True))
        for inside, outside in zip(body.inputs, arguments, strict=True):
            if inside.id in self.names:
                self.names.setdefault(outside.id, self.names[inside.id])
        for inside, outside in zip(body.outputs, outputs, strict=True):
            if inside.id in self.names:
                self.names[outside.id] = self.names[inside.id]
        nodes.append(
            Loop(
                id=node_id,
                length=equation.params["length"],
                reverse=equation.params["reverse"],
                constants=arguments[: split[0]],
                carries=arguments[split[0] : split[1]],
                sequences=arguments[split[1] :],
                finals=outputs[: parts.carries],
                stacked=outputs[parts.carries :],
                body=body,
            )
        )

    def _bound(self, jaxpr: Any, equation: Any, scope: dict[Any, Value]) -> tuple[Any, Any, Any, Any]:
        inputs, outputs, closed, apply = jaxprs.as_function(jaxpr, equation)
        forwarded = jaxprs.forwarded(equation)
        for variable in outputs:
            scope[variable] = scope[forwarded[variable]] if variable in forwarded else self._value(variable.aval)
        computed = [i for i, variable in enumerate(outputs) if variable not in forwarded]
        origin = jaxprs.Origin(equation, tuple(inputs), tuple(outputs[i] for i in computed), closed)

        def apply_own(*arguments: Any) -> list[Any]:
            results = apply(*arguments)
            return [results[i] for i in computed]

        return tuple(scope[v] for v in inputs), tuple(scope[v] for v in origin.outputs), apply_own, origin

    def _read(self, atom: Any, scope: dict[Any, Value], nodes: list[Node]) -> Value:
        return self._constant(atom.aval, atom.val, nodes) if jaxprs.is_literal(atom) else scope[atom]

    def _constant(self, aval: Any, constant: Any, nodes: list[Node]) -> Value:
        value = self._value(aval)
        if not isinstance(constant, jax.Array):
            constant = np.asarray(constant, aval.dtype)
        nodes.append(Glue(next(self._ids), "constant", (), (value,), lambda: [jnp.asarray(constant)], origin=constant))
        return value

    def _value(self, aval: Any) -> Value:
        return Value(next(self._ids), tuple(aval.shape), aval.dtype)


def _last_name(path: str) -> str:
    """`state.world.observation` -> `observation`; `result[1]['w']` -> `w`; `result[0]` -> ``."""
    parts = [part for part in re.split(r"[.\[\]'\"]+", path) if part and not part.isdigit() and part != "<flat index"]
    return parts[-1] if parts else ""
