"""Descriptions of a worker's activity, for messages."""

from collections.abc import Sequence
from typing import Any

from fragmenta.graph import Interface
from fragmenta.worker.steps import Host, Put, Segment, Step, Take


def doing(step: Step | None) -> str:
    """What a worker at this step is doing."""
    if isinstance(step, Put):
        return f"sends {_interface_text(step.interface)} to {step.interface.consumer}"
    if isinstance(step, Take):
        return f"waits for {_interface_text(step.interface)} from {step.interface.producer}"
    return f"computes {step.label}" if isinstance(step, (Segment, Host)) else "computes"


def late(worker: str, action: str, interface: Interface, peer: str, seconds: float, iteration: int) -> str:
    """That a worker could not send or receive in time."""
    time_limit = f"within {seconds:g} s (iteration {iteration})"
    return f"{worker} could not {action} {_interface_text(interface)} {peer} {time_limit}"


def _interface_text(interface: Interface) -> str:
    return f"'{interface.name}' {interface.value}" if interface.name else str(interface.value)


def peer(fragment: str, index: int, channels: Sequence[Any]) -> str:
    """The worker at the other end of one of several channels."""
    return f"{fragment}[{index}]" if len(channels) > 1 else fragment
