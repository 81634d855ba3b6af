"""Everything a process needs to rebuild the plan: algorithm, environment, distribution policy, and JAX settings."""

from typing import Any

import cloudpickle
import jax

from fragmenta.engines.base import Setup
from fragmenta.worker.backends.kernel import Switch, use_kernels

SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_numpy_dtype_promotion",
    "jax_debug_nans",
)

KERNELS = "kernels"


def pickled_job(setup: Setup) -> bytes:
    """The job, with importable code pickled by reference and code of the main script by value.

    The launcher passes it to a process as it starts it; nothing received over a connection is unpickled.
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
            "jax": jax_settings(),
        }
    )


def jax_settings() -> dict[str, Any]:
    """The settings of JAX in this process that programs depend on, and whether it makes kernels."""
    return {**{name: getattr(jax.config, name) for name in SETTINGS}, KERNELS: Switch.on}


def use_jax_settings(settings: dict[str, Any]) -> None:
    """Use the settings of another process in this one."""
    for name, value in settings.items():
        if name == KERNELS:
            use_kernels(value)
        else:
            jax.config.update(name, value)
