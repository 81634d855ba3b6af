"""Joins JAX processes into a distributed group: one mesh of all devices, collectives over gloo (CPU) or NCCL (GPU)."""

from importlib import import_module
from typing import Any

import jax

HEARTBEAT_SECONDS = 10
"""A member without a heartbeat for this long counts as dead."""

JOINING_SECONDS = 60
"""How long members wait for each other at startup."""


def join(coordinator: str, bind: str, count: int, index: int, address: str) -> None:
    """Make this process member `index` of a distributed group of `count`; call it before any JAX computation.

    Members connect to member 0 at `coordinator` (host:port); member 0 listens at `bind` (host:port). `address` is where
    the others reach this process for collectives on CPUs. Nothing listens on any other address.
    """
    # Otherwise a dead member makes JAX terminate all other processes, and the state in their memory is lost.
    jax.config.update("jax_enable_recoverability", True)
    _bind_collectives(address)
    jax.distributed.initialize(
        coordinator,
        num_processes=count,
        process_id=index,
        coordinator_bind_address=bind,
        cluster_detection_method="deactivate",
        heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        initialization_timeout=JOINING_SECONDS,
        shutdown_timeout_seconds=HEARTBEAT_SECONDS,
    )


def _bind_collectives(address: str) -> None:
    """Make CPU collectives listen at `address`: by default JAX uses the address that the hostname resolves to."""
    from jax._src import distributed, xla_bridge

    lib: Any = import_module("jaxlib._jax")  # has no types

    def client():
        members = distributed.global_state.client
        return xla_bridge.make_cpu_client(lib.make_gloo_tcp_collectives(members, hostname=address))

    xla_bridge.register_backend_factory("cpu", client, priority=0, fail_quietly=False)
