"""Programs over the same devices take turns: two whose collectives wait for each other's devices would wait forever."""

import contextlib
import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax

from fragmenta.worker.deploy import Deployment


def take_turns(deployments: Sequence[Deployment]) -> list[Deployment]:
    """The same deployments; those that use several devices, of which another one uses some too, launch in turn.

    Afterwards all devices have these launches in one order, whatever thread each comes from.
    """
    users = Counter(device for d in deployments if _is_wide(d) for device in d.site.devices)
    locks = {device: threading.Lock() for device, count in users.items() if count > 1}
    return [_in_turn(d, locks) if _is_wide(d) else d for d in deployments]


def _is_wide(deployment: Deployment) -> bool:
    return len(deployment.site.devices) > 1


def _in_turn(deployment: Deployment, locks: dict[Any, threading.Lock]) -> Deployment:
    # Everybody takes them in the order of the devices' numbers, so that no two hold what the other needs.
    shared = sorted(set(deployment.site.devices) & set(locks), key=lambda device: device.id)
    if not shared:
        return deployment
    turn = [locks[device] for device in shared]
    # An accelerator does what it is given in order. CPU devices do not, and get stuck once launches pile up.
    finishes = deployment.site.platform == "cpu"

    def wrapped(program: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arrays: Any) -> Any:
            with contextlib.ExitStack() as held:
                for lock in turn:
                    held.enter_context(lock)
                results = program(*arrays)
                return jax.block_until_ready(results) if finishes else results

        return call

    compiled = {key: wrapped(program) for key, program in deployment.compiled.items()}
    burst = deployment.burst and wrapped(deployment.burst)
    return dataclasses.replace(deployment, compiled=compiled, burst=burst)
