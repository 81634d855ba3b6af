"""What a process needs to make the plan again: the algorithm, the environment, the policy, and how JAX is set."""

import cloudpickle
import jax

from fragmenta.engines.base import Setup

SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_numpy_dtype_promotion",
    "jax_debug_nans",
)


def pickled_job(setup: Setup) -> bytes:
    """By reference what can be imported there, by value what only this program has.

    It is handed over when a process is started, by whoever starts it; nothing that comes by a connection is unpickled.
    """
    return cloudpickle.dumps(
        {
            "algorithm": setup.algorithm,
            "env": setup.env,
            "policy": setup.policy,
            "cluster": setup.cluster,
            "merge": setup.merge,
            "deadline": setup.deadline,
            "window": setup.window,
            "jax": {name: getattr(jax.config, name) for name in SETTINGS},
        }
    )
