"""Descriptions of a worker's activity, for messages."""

from collections.abc import Sequence
from typing import Any

from fragmenta.graph import Interface
from fragmenta.worker.steps import Host, Put, Segment, Step, Take


def doing(step: Step | None) -> str:
    """What a worker at this step is doing."""
    if isinstance(step, Put):
        return f"sends {interface_text(step.interface)} to {step.interface.consumer}"
    if isinstance(step, Take):
        return f"waits for {interface_text(step.interface)} from {step.interface.producer}"
    return f"computes {step.label}" if isinstance(step, (Segment, Host)) else "computes"


def interface_text(interface: Interface) -> str:
    """An interface's name, type and shape."""
    return f"'{interface.name}' {interface.value}" if interface.name else str(interface.value)


def peer(fragment: str, index: int, channels: Sequence[Any]) -> str:
    """The worker at the other end of one of several channels."""
    return f"{fragment}[{index}]" if len(channels) > 1 else fragment
