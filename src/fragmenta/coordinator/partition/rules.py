"""Which rule holds for which primitive. What has none is computed whole by every replica."""

from fragmenta.coordinator.partition import indexing, products, shapes
from fragmenta.coordinator.partition.way import Rule

_ELEMENTWISE = """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil
    clamp clz complex conj convert_element_type device_put copy copy_p cos cosh digamma div eq eq_to erf erf_inv erfc exp exp2 expm1
    floor ge gt igamma igamma_grad_a igammac imag integer_pow is_finite le le_to lgamma log log1p logistic lt lt_to max
    min mul mulhi name ne neg nextafter not or polygamma population_count pow random_clone random_fold_in
    random_gamma_grad random_seed real reduce_precision regularized_incomplete_beta rem round rsqrt select_n
    shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh
    threefry2x32 xor zeta
""".split()

RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, shapes.elementwise),
    "broadcast_in_dim": shapes.broadcast,
    "bitcast_convert_type": shapes.bitcast,
    "reshape": shapes.reshape,
    "transpose": shapes.transpose,
    "squeeze": shapes.squeeze,
    "reduce_sum": shapes.total,
    **dict.fromkeys((f"reduce_{name}" for name in ("max", "min", "and", "or", "xor", "prod")), shapes.reduction),
    **dict.fromkeys(("argmax", "argmin"), shapes.choice),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), shapes.along("axis")),
    "sort": shapes.along("dimension"),
    "top_k": shapes.along("axis"),
    "rev": shapes.along("dimensions"),
    "fft": shapes.fourier,
    "concatenate": shapes.concatenate,
    "slice": shapes.cut,
    "split": shapes.divide,
    "stack": shapes.stack,
    "unstack": shapes.unstack,
    "tile": shapes.tile,
    "reduce": shapes.reduction_of,
    "pad": shapes.pad,
    **dict.fromkeys(
        (
            *(f"reduce_window_{name}" for name in ("sum", "max", "min")),
            *("reduce_window", "select_and_scatter_add", "select_and_gather_add"),
        ),
        shapes.window_of,
    ),
    **dict.fromkeys(("random_bits", "random_split"), shapes.random_bits),
    "random_gamma": shapes.random_gamma,
    **dict.fromkeys(("random_wrap", "random_unwrap"), shapes.key_data),
    **dict.fromkeys(("cholesky", "lu", "qr", "eigh", "svd", "eig", "schur", "triangular_solve"), shapes.leading(2)),
    **dict.fromkeys(("householder_product", "geqrf", "lu_pivots_to_permutation"), shapes.leading(2)),
    "optimization_barrier": shapes.passed_on,
    "dot_general": products.dot_general,
    "conv_general_dilated": products.convolution,
    "mlp_forward": products.network,
    "mlp_backward": products.network_gradient,
    "dynamic_slice": indexing.dynamic_slice,
    "dynamic_update_slice": indexing.dynamic_update_slice,
    "gather": indexing.gather,
    "scatter": indexing.scatter,
    "scatter-add": indexing.scatter_add,
    **dict.fromkeys((f"scatter-{name}" for name in ("mul", "min", "max", "sub")), indexing.scatter),
}
