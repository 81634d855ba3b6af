"""Linear algebra, Fourier transforms, convolutions and windows."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from partition.table import FLOAT, along_axes, another, entries, rows, to_front


def _squares(x, d):
    """A well-conditioned symmetric matrix over the last dimension for each index of the others."""
    return x[..., :, None] * x[..., None, :] * 0.3 + 2 * jnp.eye(x.shape[-1]) + 0.1 * jnp.diag(jnp.arange(x.shape[-1]))


def _between(x, d):
    """A well-conditioned symmetric matrix with a row and a column for each environment."""
    table = rows(x, d)
    return 0.1 * table @ table.T + jnp.diag(2 + 0.3 * jnp.arange(x.shape[d]))


def _gram(x, d):
    """A sum over the environments: a well-conditioned matrix, the same for all."""
    table = rows(x, d)
    return 0.1 * table.T @ table + jnp.diag(2 + 0.3 * jnp.arange(table.shape[1]))


def _kernel(inputs, outputs):
    return jnp.sin(jnp.arange(2.0 * 2 * inputs * outputs)).reshape(2, 2, inputs, outputs)


def _convolved(image, outputs, groups=1, **options):
    kernel = _kernel(image.shape[3] // groups, outputs)
    names = ("NHWC", "HWIO", "NHWC")
    options = {"window_strides": (1, 1), "padding": "SAME", **options}
    return lax.conv_general_dilated(image, kernel, dimension_numbers=names, feature_group_count=groups, **options)


def _batch_of_images(x, d):
    table = rows(x, d)
    return jnp.stack([jnp.stack([table, table * 2], -1), jnp.stack([table, -table], -1)], 1)  # n, 2, m, 2


def _spatial(x, d):
    return jnp.moveaxis(_batch_of_images(x, d), 0, 2)  # 2, m, n, 2


def _features(x, d):
    return jnp.moveaxis(_batch_of_images(x, d), 0, 3)  # 2, m, 2, n


def _windowed(reducer, start):
    def apply(x, axis):
        sizes = tuple(2 if i == axis else 1 for i in range(x.ndim))
        return lax.reduce_window(x, start, reducer, sizes, (1,) * x.ndim, "SAME")

    return apply


def _root(matrix):
    values, vectors = jnp.linalg.eigh(matrix)
    return (vectors * jnp.sqrt(jnp.abs(values))[..., None, :]) @ jnp.swapaxes(vectors, -1, -2)


MATRICES = {"of each": _squares, "between environments": _between, "summed over environments": _gram}
DECOMPOSITIONS = {
    "cholesky": jnp.linalg.cholesky,
    "inv": jnp.linalg.inv,
    "det": lambda m: jnp.linalg.det(m / 3),
    "slogdet": lambda m: jnp.linalg.slogdet(m)[1],
    "solve": lambda m: jnp.linalg.solve(m, jnp.sum(m, axis=-1, keepdims=True) ** 2),
    "triangular_solve": lambda m: lax.linalg.triangular_solve(jnp.tril(m), m, left_side=True, lower=True),
    "matrix_power": lambda m: jnp.linalg.matrix_power(m / 3, 3),
}
ROUGH_DECOMPOSITIONS = {
    "qr": lambda m: jnp.abs(jnp.linalg.qr(m)[1]),
    "svd": lambda m: jnp.linalg.svd(m, compute_uv=False),
    "eigvalsh": jnp.linalg.eigvalsh,
    "eigh": _root,
    "pinv": lambda m: jnp.linalg.pinv(m),
    "lstsq": lambda m: jnp.linalg.lstsq(m.reshape(-1, m.shape[-1]), m.reshape(-1, m.shape[-1])[:, 0] ** 2)[0],
}


def _of(decomposition, matrix):
    return lambda x, d: decomposition(matrix(x, d))


def _decomposed(functions):
    return {f"{a} {b}": _of(f, m) for a, f in functions.items() for b, m in MATRICES.items()}


PRODUCTS = (
    *entries(
        {
            "matmul with a weight": lambda x, w, d: x @ w,
            "dot with a weight": lambda x, w, d: jnp.dot(x, w),
            "two layers": lambda x, w, d: jnp.tanh(x @ w) @ w.T,
            "tensordot with a weight": lambda x, w, d: jnp.tensordot(x, w, axes=([x.ndim - 1], [0])),
            "einsum with a weight": lambda x, w, d: jnp.einsum("...i,ij->...j", x, w),
            "layer norm": lambda x, w, d: (
                (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 0.1) @ w
            ),
        },
        second="weight",
    ),
    *entries(
        {"weights in bfloat16": lambda x, w, d: x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)},
        second="weight",
        within=3e-2,
    ),
    *entries(
        {
            "inner products between environments": lambda x, y, d: rows(x, d) @ rows(y, d).T,
            "product summed over environments": lambda x, y, d: rows(x, d).T @ rows(y, d),
            "vdot": lambda x, y, d: jnp.vdot(x, y),
            "inner of each": lambda x, y, d: jnp.einsum("ni,ni->n", rows(x, d), rows(y, d)),
            "outer of each": lambda x, y, d: jnp.einsum("ni,nj->nij", rows(x, d), rows(y, d)),
            "outer of each, summed": lambda x, y, d: jnp.einsum("ni,nj->ij", rows(x, d), rows(y, d)),
            "einsum to a scalar": lambda x, y, d: jnp.einsum("ni,ni->", rows(x, d), rows(y, d)),
            "einsum turned": lambda x, y, d: jnp.einsum("ni,mi->imn", rows(x, d), rows(y, d)),
            "outer": lambda x, y, d: jnp.outer(rows(x, d)[:, 0], rows(y, d)[0]),
            "kron": lambda x, y, d: jnp.kron(rows(x, d)[:, :2], rows(y, d)[:1]),
            "cross": lambda x, y, d: jnp.cross(jnp.stack([x, y, x + 1], -1), jnp.stack([y, x, y - 1], -1)),
            "tensordot over environments": lambda x, y, d: jnp.tensordot(x, y, axes=([d], [d])),
            "batched matmul": lambda x, y, d: rows(x, d)[:, :, None] @ rows(y, d)[:, None, :],
            "attention": lambda x, y, d: jax.nn.softmax(rows(x, d) @ rows(y, d).T, axis=-1) @ rows(x, d),
            "distances": lambda x, y, d: jnp.sqrt(((rows(x, d)[:, None] - rows(y, d)[None]) ** 2).sum(-1) + 0.1),
            "cov": lambda x, y, d: rows(x - x.mean(d, keepdims=True), d).T @ rows(y - y.mean(d, keepdims=True), d),
            "convolve": lambda x, y, d: jnp.convolve(rows(x, d)[:, 0], rows(y, d)[:, 0], mode="same"),
            "correlate": lambda x, y, d: jnp.correlate(rows(x, d)[:, 0], jnp.array([0.5, 1.0]), mode="full"),
            "polyval": lambda x, y, d: jnp.polyval(jnp.array([0.1, 0.2, 1.0]), x + y),
            "trapezoid": lambda x, y, d: jnp.trapezoid(x * y, dx=0.5, axis=d),
        },
        second="same",
    ),
    *entries(
        {"sums of products in integers": lambda x, y, d: rows(x, d).T @ rows(y, d)}, kinds=("int",), second="same"
    ),
)

TRANSFORMS = (
    *entries(_decomposed(DECOMPOSITIONS)),
    *entries(_decomposed(ROUGH_DECOMPOSITIONS), smooth=False),
    *entries(_decomposed({"expm": lambda m: jax.scipy.linalg.expm(m / 4)}), smooth=False, slow=True),
    *along_axes(
        {
            "fft": lambda x, axis: jnp.abs(jnp.fft.fft(x, axis=axis)) ** 2,
            "ifft": lambda x, axis: jnp.fft.ifft(x + 1j, axis=axis).real,
            "rfft": lambda x, axis: jnp.fft.rfft(x, axis=axis).real,
            "irfft": lambda x, axis: jnp.fft.irfft(x, n=4, axis=axis),
        },
    ),
    *along_axes({"fft, complex": lambda x, axis: jnp.fft.fft(x, axis=axis)}, smooth=False),
    *entries({"fft2": lambda x, d: jnp.fft.fft2(x, axes=(d, another(x, d))).imag + 1}, ranks=(2, 4)),
    *entries(
        {
            "convolution of each environment": lambda x, d: _convolved(_batch_of_images(x, d), 3),
            "convolution with strides": lambda x, d: _convolved(_batch_of_images(x, d), 2, window_strides=(2, 2)),
            "convolution by features": lambda x, d: _convolved(_batch_of_images(x, d), 4, groups=2),
            "dilated convolution": lambda x, d: _convolved(_batch_of_images(x, d), 2, rhs_dilation=(1, 2)),
            "transposed convolution": lambda x, d: _convolved(
                _batch_of_images(x, d), 2, lhs_dilation=(2, 1), padding=((1, 1), (0, 1))
            ),
            "convolution along the environments": lambda x, d: _convolved(_spatial(x, d), 2),
            "convolution down the environments": lambda x, d: _convolved(_spatial(x, d).swapaxes(1, 2), 2),
            "convolution with environments as features": lambda x, d: _convolved(_features(x, d), 2),
            "convolution in each feature": lambda x, d: _convolved(_features(x, d), x.shape[d], groups=x.shape[d]),
            "average pool": lambda x, d: nn.avg_pool(_batch_of_images(x, d), (2, 1), padding="SAME"),
            "average pool along the environments": lambda x, d: nn.avg_pool(_spatial(x, d), (1, 2), padding="SAME"),
        }
    ),
    *entries(
        {
            "max pool": lambda x, d: nn.max_pool(_batch_of_images(x, d), (2, 1), padding="SAME"),
            "max pool along the environments": lambda x, d: nn.max_pool(_spatial(x, d), (1, 2), padding="SAME"),
        },
        exact=True,
        smooth=False,
    ),
    *along_axes({"window sum": _windowed(lax.add, 0.0)}),
    *along_axes({"window max": _windowed(lax.max, -jnp.inf)}, exact=True, smooth=False),
    *along_axes({"resize": lambda x, axis: jax.image.resize(x, _longer(x, axis), "linear")}, kinds=(FLOAT,)),
    *entries(
        {"local sums": lambda x, d: jnp.convolve(to_front(x, d).reshape(-1), jnp.ones(2), mode="valid")}, ranks=(2, 4)
    ),
)


def _longer(x, axis):
    return tuple(2 * size if i == axis else size for i, size in enumerate(x.shape))


ALGEBRA = PRODUCTS + TRANSFORMS
