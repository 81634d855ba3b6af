"""Arrays exchanged with environments: one row per environment, in memory that processes can share."""

import dataclasses
import mmap
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from fragmenta_core.bounds import Bounds, bounds_of
from fragmenta_core.spaces import Space, from_json, leaves, to_json

_ALIGNMENT = 64
MOST_PROCESSES = 256


@dataclasses.dataclass(frozen=True)
class Description:
    """The spaces and limits of an environment. `agents` is None for a single agent without a team axis."""

    observation: Space
    action: Space
    agents: int | None = None
    max_steps: int | None = None
    clips_rewards: bool = False
    """The learner gets rewards clipped to -1 and 1; episode returns use the original rewards."""
    bounds: tuple[Bounds, ...] = ()
    """The bounds of each array of an observation, where they are more precise than those of the space."""
    info_masks: bool = False
    """Whether the part `action_mask` of the observations is taken from the infos."""

    def to_json(self) -> dict[str, Any]:
        """Convert to plain lists and dictionaries."""
        spaces = {"observation": to_json(self.observation), "action": to_json(self.action)}
        bounds = [dataclasses.asdict(part) for part in self.bounds]
        limits = {"agents": self.agents, "max_steps": self.max_steps, "clips_rewards": self.clips_rewards}
        return {**spaces, **limits, "bounds": bounds, "info_masks": self.info_masks}

    @staticmethod
    def from_json(data: dict[str, Any]) -> "Description":
        """The inverse of `to_json`."""
        spaces = from_json(data["observation"]), from_json(data["action"])
        bounds = tuple(Bounds(**part) for part in data["bounds"])
        return Description(
            *spaces, data["agents"], data["max_steps"], data["clips_rewards"], bounds, data["info_masks"]
        )

    @property
    def observation_leaves(self) -> list[tuple[str, tuple[int, ...], str]]:
        """Name, shape and type of each array of one environment's observation."""
        team = () if self.agents is None else (self.agents,)
        return [(name or "observation", (*team, *shape), dtype) for name, shape, dtype in leaves(self.observation)]

    @property
    def observation_bounds(self) -> list[Bounds]:
        """The bounds of each array of one environment's observation."""
        bounds = list(self.bounds) or bounds_of(self.observation)
        return bounds if self.agents is None else [part.with_zero() for part in bounds]

    def rows(self, count: int) -> tuple[int, ...]:
        """The leading dimensions of an array of `count` environments, with one for agents where there are several."""
        return (count,) if self.agents is None else (count, self.agents)

    def fields(self) -> Iterator[tuple[str, tuple[int, ...], str]]:
        """Name, shape and type of every array of one environment."""
        team = () if self.agents is None else (self.agents,)
        ((_, action, action_type),) = leaves(self.action)
        yield "action", (*team, *action), action_type
        for when in ("observation", "next"):
            for i, (_, shape, dtype) in enumerate(self.observation_leaves):
                yield f"{when}{i}", shape, dtype
        yield "reward", team, "float32"
        yield "terminated", (), "bool"
        yield "truncated", (), "bool"
        yield "alive", team, "bool"
        yield "next_alive", team, "bool"


class Arrays:
    """Arrays for `count` environments; `observation` is current, `next` is the one after a step, before any reset."""

    def __init__(self, description: Description, count: int, memory: "mmap.mmap | None" = None) -> None:
        fields = list(description.fields())
        offsets, size = [], 4 * MOST_PROCESSES + _ALIGNMENT * -(-len(description.observation_leaves) // _ALIGNMENT)
        for _, shape, dtype in fields:
            offsets.append(size)
            size += -(-count * int(np.prod(shape, dtype=int)) * np.dtype(dtype).itemsize // _ALIGNMENT) * _ALIGNMENT
        self.bytes = size
        buffer: Any = memory if memory is not None else bytearray(size)
        by_name = {
            name: np.frombuffer(buffer, dtype, count * int(np.prod(shape, dtype=int)), offset).reshape(count, *shape)
            for (name, shape, dtype), offset in zip(fields, offsets, strict=True)
        }
        parts = range(len(description.observation_leaves))
        self.busy = np.frombuffer(buffer, np.int32, MOST_PROCESSES, 0)
        """Per process: the index of the environment it is working on, plus one; 0 for none."""
        self.warned = np.frombuffer(buffer, np.bool_, len(parts), 4 * MOST_PROCESSES)
        """Per array of an observation: whether some process has reported it as outside of its bounds."""
        self.action = by_name["action"]
        self.observation = [by_name[f"observation{i}"] for i in parts]
        self.next = [by_name[f"next{i}"] for i in parts]
        self.reward, self.terminated, self.truncated = (by_name[n] for n in ("reward", "terminated", "truncated"))
        self.alive, self.next_alive = by_name["alive"], by_name["next_alive"]


def nameless_file(size: int) -> int:
    """A descriptor of unnamed memory, so that nothing is left behind however a process ends."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("fragmenta")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def shared_arrays(description: Description, count: int, descriptor: int) -> Arrays:
    """Arrays in the memory behind a descriptor, which may be closed afterwards."""
    return Arrays(description, count, mmap.mmap(descriptor, Arrays(description, count).bytes))
