"""Several JAX processes as one: their devices make one mesh; collectives go by gloo on CPUs, by NCCL on GPUs."""

from importlib import import_module
from typing import Any

import jax

HEARTBEAT_SECONDS = 10
"""A member that gives no sign of life for this long is gone."""

JOINING_SECONDS = 60
"""How long members wait for each other at the start."""


def join(coordinator: str, bind: str, count: int, index: int, address: str) -> None:
    """Make this process member `index` of a group of `count`; must come before anything is computed.

    `coordinator` (host:port) is where the members find member 0, which listens at `bind` (host:port); `address` is the
    one of this process at which the others reach it for collectives on CPUs. Nothing listens anywhere else.
    """
    # Else a dead member makes JAX end the process of every other one, and with it the state that they keep in memory.
    jax.config.update("jax_enable_recoverability", True)
    _talk_at(address)
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


def _talk_at(address: str) -> None:
    """Let collectives on CPUs listen at `address`: JAX itself takes the address that this machine's name stands for."""
    from jax._src import distributed, xla_bridge

    lib: Any = import_module("jaxlib._jax")  # has no types

    def client():
        members = distributed.global_state.client
        return xla_bridge.make_cpu_client(lib.make_gloo_tcp_collectives(members, hostname=address))

    xla_bridge.register_backend_factory("cpu", client, priority=0, fail_quietly=False)
