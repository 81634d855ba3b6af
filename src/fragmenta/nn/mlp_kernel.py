"""A tanh network as one forward and one backward GPU kernel, in Pallas.

Between matrix products this small, XLA writes every activation to memory and reads it back, and that traffic dominates
the cost of an update. Here a block of rows goes through all layers on chip; the backward kernel recomputes the
activations instead of reading them, and sums the weights' gradients per program.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.custom_derivatives import SymbolicZero
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

BLOCK = 64
"""Rows that a program processes at once."""
PROGRAMS = 256
"""Maximum programs of the backward kernel, each with its own sums: about two per multiprocessor of a Hopper GPU."""
NARROW = 16
"""Minimum width of a matrix product on the tensor cores: inputs and outputs are padded to it."""

Layers = tuple[tuple[jax.Array, jax.Array], ...]
"""Per layer: weights and bias."""


def fits(rows: int, widths: tuple[int, ...]) -> bool:
    """Whether a network of these widths (input, hidden, output) on `rows` rows can run as a kernel."""
    hidden = all(width in (16, 32, 64, 128) for width in widths[1:-1])
    return hidden and max(widths[0], widths[-1]) <= NARROW and rows % BLOCK == 0 and len(widths) <= 4


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def mlp(layers: Layers, x: jax.Array, compute: str, interpret: bool) -> jax.Array:
    """The network's outputs in float32 for a batch of rows, with all but the last layer followed by tanh."""
    return forward_p.bind(x, *jax.tree.leaves(layers), compute=compute, interpret=interpret)[0]


def _run_forward(x: jax.Array, *weights: jax.Array, compute: str, interpret: bool) -> list[jax.Array]:
    layers = _paired(weights)
    if x.shape[0] % BLOCK:  # a replica's part need not fill whole blocks
        return [_layers_forward(x.astype(jnp.dtype(compute)), _plain(layers, compute), compute)[-1]]
    padded, inputs = _pad(layers, x, compute)
    rows, outputs = x.shape[0], layers[-1][0].shape[1]
    result = pl.pallas_call(
        functools.partial(_forward_kernel, depth=len(layers), compute=compute),
        grid=(rows // BLOCK,),
        in_specs=[_rows_spec(NARROW), *(_whole_spec(a) for pair in padded for a in pair)],
        out_specs=_rows_spec(NARROW),
        out_shape=jax.ShapeDtypeStruct((rows, NARROW), jnp.float32),
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=2),
        interpret=interpret,
        name="mlp_forward",
    )(inputs, *(a for pair in padded for a in pair))
    return [result[:, :outputs]]


def _mlp_forward(layers: Any, x: Any, compute: str, interpret: bool) -> tuple[jax.Array, Any]:
    plain = jax.tree.map(lambda primal: primal.value, layers)
    # Whether the gradient of x is needed is known now; it is passed on as structure, not as a value.
    return mlp(plain, x.value, compute, interpret), (plain, x.value, () if x.perturbed else None)


def _mlp_backward(compute: str, interpret: bool, saved: Any, gradient: Any) -> tuple[Layers, Any]:
    layers, x, wants_dx = saved
    if isinstance(gradient, SymbolicZero):
        gradient = jnp.zeros(gradient.shape, jnp.float32)
    params = {"compute": compute, "interpret": interpret, "with_dx": wants_dx is not None}
    gradients = backward_p.bind(x, gradient, *jax.tree.leaves(layers), **params)
    if wants_dx is None:
        return _paired(gradients), jnp.zeros_like(x)
    return _paired(gradients[1:]), gradients[0]


def _run_backward(
    x: jax.Array, gradient: jax.Array, *weights: jax.Array, compute: str, interpret: bool, with_dx: bool
) -> list[jax.Array]:
    """The gradient of the rows, if requested, then of each layer's weights and bias."""
    layers = _paired(weights)
    rows = x.shape[0]
    if rows % BLOCK:

        def plain(x: jax.Array, layers: Layers) -> jax.Array:
            return _layers_forward(x.astype(jnp.dtype(compute)), _plain(layers, compute), compute)[-1]

        dx, pairs = jax.vjp(plain, x, layers)[1](gradient)
        return [*([dx] if with_dx else []), *jax.tree.leaves(pairs)]
    padded, inputs = _pad(layers, x, compute)
    programs = min(PROGRAMS, rows // BLOCK)
    while rows % (programs * BLOCK):
        programs -= 1
    padded_gradient = jnp.pad(gradient, ((0, 0), (0, NARROW - gradient.shape[1])))
    flat = [a for pair in padded for a in pair]
    share = rows // programs
    dx_specs = [_rows_spec(NARROW, share)] if with_dx else []
    dx_shapes = [jax.ShapeDtypeStruct((rows, NARROW), jnp.float32)] if with_dx else []
    sums = [jax.ShapeDtypeStruct((programs, *a.shape), jnp.float32) for a in flat]
    results = pl.pallas_call(
        functools.partial(_backward_kernel, depth=len(layers), compute=compute, blocks=share // BLOCK, with_dx=with_dx),
        grid=(programs,),
        in_specs=[_rows_spec(NARROW, share), _rows_spec(NARROW, share), *(_whole_spec(a) for a in flat)],
        out_specs=[*(_program_spec(a) for a in flat), *dx_specs],
        out_shape=[*sums, *dx_shapes],
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=2),
        interpret=interpret,
        name="mlp_backward",
    )(inputs, padded_gradient, *flat)
    gradients = iter(jnp.sum(total, axis=0) for total in results[: len(flat)])
    trimmed = []
    for w, b in layers:
        trimmed += [next(gradients)[: w.shape[0], : w.shape[1]].astype(w.dtype)]
        trimmed += [next(gradients)[0, : b.shape[0]].astype(b.dtype)]
    return [*([results[-1][:, : x.shape[1]].astype(x.dtype)] if with_dx else []), *trimmed]


def _primitive(name: str, function: Any) -> Primitive:
    """Wrap a function of any number of rows as one operation, which a replica can apply to its own rows."""
    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(function)

    def shapes(*avals: Any, **params: Any) -> Any:
        outputs = jax.eval_shape(functools.partial(function, **params), *avals)
        return [ShapedArray(x.shape, x.dtype) for x in outputs]

    def batch(arrays: Any, dims: Any, **params: Any) -> Any:
        outputs = jax.vmap(functools.partial(function, **params), dims)(*arrays)
        return outputs, [0] * len(outputs)

    primitive.def_abstract_eval(shapes)
    mlir.register_lowering(primitive, mlir.lower_fun(function, multiple_results=True))
    batching.primitive_batchers[primitive] = batch
    return primitive


forward_p = _primitive("mlp_forward", _run_forward)
backward_p = _primitive("mlp_backward", _run_backward)
mlp.defvjp(_mlp_forward, _mlp_backward, symbolic_zeros=True)


def _paired(leaves: Any) -> Layers:
    return tuple((leaves[i], leaves[i + 1]) for i in range(0, len(leaves), 2))


def _plain(layers: Layers, compute: str) -> list[Any]:
    return [x for w, b in layers for x in (w.astype(jnp.dtype(compute)), b.astype(jnp.float32))]


def _pad(layers: Layers, x: jax.Array, compute: str) -> tuple[list[tuple[jax.Array, jax.Array]], jax.Array]:
    """Inputs and weights in the compute dtype, narrow sides padded with zeros; biases as float32 rows."""
    dtype = jnp.dtype(compute)
    sizes = [NARROW, *(w.shape[1] for w, _ in layers[:-1]), NARROW]
    padded = []
    for (w, b), rows, columns in zip(layers, sizes[:-1], sizes[1:], strict=True):
        weights = jnp.pad(w.astype(dtype), ((0, rows - w.shape[0]), (0, columns - w.shape[1])))
        padded.append((weights, jnp.pad(b.astype(jnp.float32), (0, columns - b.shape[0]))[None]))
    return padded, jnp.pad(x.astype(dtype), ((0, 0), (0, NARROW - x.shape[1])))


def _rows_spec(columns: int, rows: int = BLOCK) -> pl.BlockSpec:
    return pl.BlockSpec((rows, columns), lambda i: (i, 0))


def _whole_spec(array: jax.Array) -> pl.BlockSpec:
    return pl.BlockSpec(array.shape, lambda i: (0,) * array.ndim)


def _program_spec(array: jax.Array) -> pl.BlockSpec:
    return pl.BlockSpec((None, *array.shape), lambda i: (i, *(0,) * array.ndim))


def _dot(a: jax.Array, b: jax.Array, a_over: int, b_over: int) -> jax.Array:
    """A product in float32 that sums over one dimension of each factor."""
    return jax.lax.dot_general(a, b, (((a_over,), (b_over,)), ((), ())), preferred_element_type=jnp.float32)


def _layers_forward(x: jax.Array, weights: list[Any], compute: str) -> list[jax.Array]:
    """The input of every layer, and the output of the last."""
    values = [x]
    for i in range(len(weights) // 2):
        linear = _dot(values[-1], weights[2 * i], 1, 0) + weights[2 * i + 1]
        values.append(linear if i == len(weights) // 2 - 1 else jnp.tanh(linear).astype(jnp.dtype(compute)))
    return values


def _forward_kernel(x_ref: Any, *refs: Any, depth: int, compute: str) -> None:
    weights = [ref[...] for ref in refs[: 2 * depth]]
    refs[-1][...] = _layers_forward(x_ref[...], weights, compute)[-1]


def _backward_kernel(x_ref: Any, g_ref: Any, *refs: Any, depth: int, compute: str, blocks: int, with_dx: bool) -> None:
    weights = [ref[...] for ref in refs[: 2 * depth]]
    sums = refs[2 * depth : 4 * depth]
    dtype = jnp.dtype(compute)

    def block(i: jax.Array, totals: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        rows = pl.ds(i * BLOCK, BLOCK)
        values = _layers_forward(x_ref[rows, :], weights, compute)
        gradient = g_ref[rows, :]
        added = list(totals)
        for layer in reversed(range(depth)):
            narrow = gradient.astype(dtype)
            added[2 * layer] += _dot(values[layer], narrow, 0, 0)
            added[2 * layer + 1] += jnp.sum(gradient, axis=0)[None]
            if layer:
                slope = 1.0 - values[layer].astype(jnp.float32) ** 2
                gradient = _dot(narrow, weights[2 * layer], 1, 1) * slope
            elif with_dx:
                refs[-1][rows, :] = _dot(narrow, weights[0], 1, 1)
        return tuple(added)

    start = tuple(jnp.zeros(w.shape, jnp.float32) for w in weights)
    for ref, total in zip(sums, jax.lax.fori_loop(0, blocks, block, start), strict=True):
        ref[...] = total
