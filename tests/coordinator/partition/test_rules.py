"""Every operation of the installed JAX has a rule, or is known to need none."""

import jax
from jax.extend.core import Primitive
from jax.extend.core import primitives as named

from fragmenta.coordinator.partition.analyse import CONTROL
from fragmenta.coordinator.partition.rules import RULES

NOTHING_TO_SPLIT = {"iota", "empty", "empty2", "create_token", "after_all", "axis_index", "dce_sink"}
CALLS = {
    *("call", "closed_call", "custom_jvp_call", "custom_vjp_call", "custom_lin", "eval_jaxpr", "jit", "remat2"),
    "stage",
}
REFERENCES = {"get", "swap"}
AXES_OF_THE_USERS_OWN = {"all_gather", "all_to_all", "ragged_all_to_all", "pmax", "pmin", "ppermute", "psum"}
RARE = {
    *("approx_top_k", "cholesky_update", "geqp3", "hessenberg", "ormqr", "symmetric_product"),
    *("tridiagonal", "tridiagonal_solve", "ragged_dot_general", "rng_bit_generator", "rng_uniform"),
    *("select_and_scatter", "sharding_constraint", "to_edtype", "from_edtype", "tie", "composite"),
}
"""Without a rule, every replica gathers the inputs and computes these in full: correct, but slower."""


def test_no_operation_is_overlooked() -> None:
    """If a new JAX adds an operation (as it did for the derivative of `tanh`), replicas would repeat its work, and no
    result would show it."""
    public = (jax.lax, jax.lax.linalg, named)
    operations = {value.name for module in public for value in vars(module).values() if isinstance(value, Primitive)}
    assert len(operations) > 150
    covered = RULES.keys() | CONTROL.keys() | CALLS | REFERENCES | NOTHING_TO_SPLIT | AXES_OF_THE_USERS_OWN | RARE
    assert operations - covered == set()
