"""Serialises calls of programs that share devices: collectives that wait for each other's devices would deadlock."""

import contextlib
import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax

from fragmenta.worker.deploy import Deployment


def take_turns(deployments: Sequence[Deployment]) -> list[Deployment]:
    """The same deployments, with those that use several devices and share some of them called in turn.

    All devices then see these calls in the same order, whichever thread they come from.
    """
    users = Counter(device for d in deployments if _is_wide(d) for device in d.site.devices)
    locks = {device: threading.Lock() for device, count in users.items() if count > 1}
    return [_in_turn(d, locks) if _is_wide(d) else d for d in deployments]


def _is_wide(deployment: Deployment) -> bool:
    return len(deployment.site.devices) > 1


def _in_turn(deployment: Deployment, locks: dict[Any, threading.Lock]) -> Deployment:
    # All threads acquire the locks in the order of device ids, so that no two threads deadlock.
    shared = sorted(set(deployment.site.devices) & set(locks), key=lambda device: device.id)
    if not shared:
        return deployment
    turn = [locks[device] for device in shared]
    # An accelerator executes calls in order. CPU devices do not, and deadlock once calls pile up.
    blocks = deployment.site.platform == "cpu"

    def wrapped(program: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arrays: Any) -> Any:
            with contextlib.ExitStack() as stack:
                for lock in turn:
                    stack.enter_context(lock)
                results = program(*arrays)
                return jax.block_until_ready(results) if blocks else results

        return call

    compiled = {key: wrapped(program) for key, program in deployment.compiled.items()}
    burst = deployment.burst and wrapped(deployment.burst)
    return dataclasses.replace(deployment, compiled=compiled, burst=burst)
