"""Trace a training loop into a graph. With `jaxprs`, `flat` and `spread` the only code that reads JAX's programs."""

import dataclasses
import itertools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fragmenta.algorithms import Algorithm
from fragmenta.coordinator import jaxprs
from fragmenta.envs import Environment
from fragmenta.errors import ConfigError
from fragmenta.graph import Block, Call, Glue, Graph, Loop, Mark, Node, Value


def trace(algorithm: Algorithm, env: Environment) -> Graph:
    """The graph of one `iterate`. Afterwards every stage is a Call, every scan that holds one a Loop, the rest Glue."""
    return _trace(algorithm, env, {"envs": algorithm.num_envs, "agents": env.num_agents}, None, frozenset())


def abstract_state(algorithm: Algorithm, env: Environment, num_envs: int) -> Any:
    """Shapes and types of the state with that many environments; runs nothing."""
    sized = dataclasses.replace(algorithm, num_envs=num_envs)
    return jax.eval_shape(lambda: sized.init(env, jax.random.key(0)))


def _trace(
    algorithm: Algorithm,
    env: Environment,
    sizes: dict[str, int],
    together: tuple[str, int] | None,
    opened: frozenset[str],
) -> Graph:
    """Trace at these sizes, as one of several replicas that run as one, looking into the stages in `opened`."""
    sized = env.with_agents(sizes["agents"])

    def iterate(state: Any) -> Any:
        return algorithm.iterate(sized, state)

    state = abstract_state(algorithm, sized, sizes["envs"])
    axis_env = [together] if together else None
    closed, shapes = jax.make_jaxpr(iterate, axis_env=axis_env, return_shape=True)(state)
    if jax.tree.structure(shapes[0]) != jax.tree.structure(state) or jax.tree.leaves(shapes[0]) != jax.tree.leaves(
        state
    ):
        raise ConfigError(f"{type(algorithm).__name__}.iterate must return a state of the same shapes as it takes")
    tracer = _Tracer(opened)
    block = tracer.block(closed)
    state_names = _leaf_names(state)
    for value, name in zip(block.inputs, state_names, strict=True):
        tracer.names[value.id] = name if name.count(".") < 3 else ".".join(name.split(".")[-2:])
    metric_names = _leaf_names(shapes[1])
    for value, name in zip(block.outputs[len(state_names) :], metric_names, strict=True):
        tracer.names.setdefault(value.id, name)
    top = dict.fromkeys(name for node in block.walk() if isinstance(node, Call) for name in node.holds)
    nested = dict.fromkeys(name for node in block.walk() if isinstance(node, Call) for name in node.inner)
    return Graph(
        block=block,
        state_names=state_names,
        metric_names=metric_names,
        stages=tuple(dict.fromkeys([*top, *nested])),
        top_stages=tuple(top),
        sizes=sizes,
        opened=opened,
        names=tracer.names,
        retrace=lambda *arguments: _trace(algorithm, env, *arguments),
    )


class _Tracer:
    """Numbers values and nodes in program order, so that two traces of one loop agree on them."""

    def __init__(self, opened: frozenset[str]) -> None:
        self.opened = opened
        self.names: dict[int, str] = {}
        self._ids = itertools.count()

    def block(self, closed: Any) -> Block:
        """A jaxpr as a block of its own."""
        jaxpr, _ = jaxprs.open_jaxpr(closed)
        scope = {variable: self._value(variable.aval) for variable in jaxpr.invars}
        inputs = tuple(scope[variable] for variable in jaxpr.invars)
        nodes: list[Node] = []
        outputs = self._inline(closed, scope, nodes)
        return Block(inputs, tuple(nodes), outputs)

    def _inline(self, closed: Any, scope: dict[Any, Value], nodes: list[Node]) -> tuple[Value, ...]:
        """Append the nodes of a jaxpr whose inputs are in scope; its outputs."""
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
            # A cond or a while: its stages stay together, because how often each runs is known only at run time.
            label = f"{equation.primitive.name}({', '.join(within)})"
            self._call(jaxpr, equation, scope, nodes, label, within, ())

    def _glue(self, jaxpr: Any, equation: Any, scope: dict[Any, Value], nodes: list[Node]) -> None:
        inputs, outputs, apply, origin = self._bound(jaxpr, equation, scope)
        mark = _mark(jaxprs.mark(equation))
        label = equation.params.get("name", equation.primitive.name)
        nodes.append(Glue(next(self._ids), str(label), inputs, outputs, apply, mark, origin))

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
        marks = tuple(m for m in map(_mark, jaxprs.marks_within(equation)) if m)
        effects = bool(equation.effects)
        host = jaxprs.host_function(equation, list(origin.inputs), list(origin.outputs))
        nodes.append(Call(next(self._ids), stage, inputs, outputs, apply, inner, holds, marks, effects, host, origin))
        called = jaxprs.called_jaxpr(equation)
        if called is None:
            return
        results = zip(equation.outvars, jaxprs.result_names(called), strict=True)
        for variable, path in results:
            if not jaxprs.is_dropped(variable) and _last_name(path) not in ("", "result"):
                self.names.setdefault(scope[variable].id, _last_name(path))
        # What a stage calls its argument beats what its producer calls the result, which is often a bare position.
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
        inputs, outputs, apply = jaxprs.as_function(jaxpr, equation)
        forwarded = jaxprs.forwarded(equation)
        for variable in outputs:
            scope[variable] = scope[forwarded[variable]] if variable in forwarded else self._value(variable.aval)
        own = [i for i, variable in enumerate(outputs) if variable not in forwarded]
        origin = jaxprs.Origin(equation, tuple(inputs), tuple(outputs[i] for i in own))

        def apply_own(*arguments: Any) -> list[Any]:
            results = apply(*arguments)
            return [results[i] for i in own]

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


def _mark(parts: jaxprs.MarkParts | None) -> Mark | None:
    if parts is None:
        return None
    return Mark(parts.op, parts.over, parts.axis, Value(-1, tuple(parts.aval.shape), parts.aval.dtype), parts.times)


def _leaf_names(tree: Any) -> tuple[str, ...]:
    """The path of every leaf, as in `learner.params.policy`."""
    paths = (jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree))
    return tuple(re.sub(r"[.\[\]'\"]+", ".", path).strip(".") for path in paths)


def _last_name(path: str) -> str:
    """`state.world.observation` -> `observation`; `result[1]['w']` -> `w`; `result[0]` -> ``."""
    parts = [part for part in re.split(r"[.\[\]'\"]+", path) if part and not part.isdigit() and part != "<flat index"]
    return parts[-1] if parts else ""
