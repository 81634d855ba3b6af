"""The numbers that go between environments and their user: one row per environment, in memory that can be shared."""

import dataclasses
import mmap
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from fragmenta_core.spaces import Space, from_json, leaves, to_json

_ALIGNED = 64
MOST_PROCESSES = 256


@dataclasses.dataclass(frozen=True)
class Description:
    """What an environment shows and takes. `agents` is None for an environment with one agent and no team axis."""

    observation: Space
    action: Space
    agents: int | None = None
    max_steps: int | None = None
    clips_rewards: bool = False
    """Learners see rewards between -1 and 1; episodes are counted by the rewards as they are."""

    def to_json(self) -> dict[str, Any]:
        """As plain lists and dictionaries."""
        spaces = {"observation": to_json(self.observation), "action": to_json(self.action)}
        return {**spaces, "agents": self.agents, "max_steps": self.max_steps, "clips_rewards": self.clips_rewards}

    @staticmethod
    def from_json(found: dict[str, Any]) -> "Description":
        """The inverse of `to_json`."""
        spaces = from_json(found["observation"]), from_json(found["action"])
        return Description(*spaces, found["agents"], found["max_steps"], found["clips_rewards"])

    @property
    def observation_leaves(self) -> list[tuple[str, tuple[int, ...], str]]:
        """Name, shape and type of each array of one environment's observation."""
        team = () if self.agents is None else (self.agents,)
        return [(name or "observation", (*team, *shape), dtype) for name, shape, dtype in leaves(self.observation)]

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
    """Arrays for `count` environments. `observation` has what is seen now, `next` what a step led to before a reset."""

    def __init__(self, description: Description, count: int, memory: "mmap.mmap | None" = None) -> None:
        fields = list(description.fields())
        places, size = [], 4 * MOST_PROCESSES
        for _, shape, dtype in fields:
            places.append(size)
            size += -(-count * int(np.prod(shape, dtype=int)) * np.dtype(dtype).itemsize // _ALIGNED) * _ALIGNED
        self.bytes = size
        buffer: Any = memory if memory is not None else bytearray(size)
        by_name = {
            name: np.frombuffer(buffer, dtype, count * int(np.prod(shape, dtype=int)), place).reshape(count, *shape)
            for (name, shape, dtype), place in zip(fields, places, strict=True)
        }
        parts = range(len(description.observation_leaves))
        self.busy = np.frombuffer(buffer, np.int32, MOST_PROCESSES, 0)
        """Per process: one more than the index of the environment that it works on; 0 for none."""
        self.action = by_name["action"]
        self.observation = [by_name[f"observation{i}"] for i in parts]
        self.next = [by_name[f"next{i}"] for i in parts]
        self.reward, self.terminated, self.truncated = (by_name[n] for n in ("reward", "terminated", "truncated"))
        self.alive, self.next_alive = by_name["alive"], by_name["next_alive"]


def nameless_file(size: int) -> int:
    """A descriptor of memory that has no name, so that nothing can be left behind, however a process ends."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("fragmenta")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def shared(description: Description, count: int, descriptor: int) -> Arrays:
    """The arrays in the memory behind a descriptor, which may be closed afterwards."""
    return Arrays(description, count, mmap.mmap(descriptor, Arrays(description, count).bytes))
