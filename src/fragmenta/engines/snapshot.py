"""The state of all processes as the coordinator has it: what they resume from after a loss.

Leaves that fill anew as training goes on (`Algorithm.rebuildable`: a replay) are part of it as long as they are small.
Larger ones stay in place, in the processes. After a loss, a process that still has its part uses that, with its newest
steps marked as the end of an episode; one that was lost starts with an empty part. All other leaves resume from the
snapshot.
"""

import sys
import time
from collections.abc import Container, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fragmenta.engines.base import Setup
from fragmenta.engines.control import LostError, Peer
from fragmenta.engines.crew import Crew
from fragmenta.engines.dispatch import collect, positions
from fragmenta.engines.holding import part_of_state
from fragmenta.engines.in_flight import InFlight, join_in_flight
from fragmenta.engines.in_place import in_place

SNAPSHOT_SECONDS = 3.0
"""The least time between two snapshots, except those that the caller asks for."""
SNAPSHOT_SHARE = 0.05
"""The largest share of the time that they take."""
CHUNK = 1 << 22
"""Elements that are looked at together, to find out whether all elements of an array are the same."""


class ResumePoint:
    """The leaves of the state after some iteration, and the values in flight then."""

    def __init__(self, setup: Setup, crew: Crew) -> None:
        self._setup, self._plan, self._crew = setup, setup.plan, crew
        self.leaves: list[Any] = []
        """None in place of a leaf that stays in the processes."""
        self.in_flight: InFlight = {}
        self.iteration = 0
        self.env_restarts = 0
        """The restarts of environments until then."""
        self._taken, self._seconds = time.monotonic(), 0.0
        """When the snapshot was taken, and how long that took."""
        self._in_place = in_place(setup.plan.graph)

    @property
    def is_due(self) -> bool:
        """Whether it is time for the next one."""
        return time.monotonic() - self._taken > max(SNAPSHOT_SECONDS, self._seconds / SNAPSHOT_SHARE)

    def begin(self, state: Sequence[Any], in_flight: InFlight) -> None:
        """Resume from this state from now on."""
        self.leaves = [None if isinstance(leaf, jax.ShapeDtypeStruct) else leaf for leaf in state]
        self.in_flight = in_flight

    def leave_in_place(self) -> None:
        """Forget the leaves that stay in the processes, which have loaded them."""
        self.leaves = [None if i in self._in_place else leaf for i, leaf in enumerate(self.leaves)]

    def keeps(self, i: int) -> bool:
        """Whether a process has a part of what stays in place."""
        return not self._in_place.isdisjoint(self._crew.places[i][0].state)

    def keepers(self, among: Sequence[int]) -> frozenset[int]:
        """After a loss: those of these processes that still have their part of what stays in place."""
        holders = [i for i in among if self.keeps(i)]
        if any(self.leaves[i] is not None for i in self._in_place):  # they never loaded it
            return frozenset()
        answers = self._crew.ask({i: {"leaves": sorted(self._in_place)} for i in holders}, "held", self._crew.patience)
        kept = frozenset(i for i, (answer, _) in answers.items() if answer["held"])
        if lost := [self._crew.names[i] for i in holders if i not in kept]:
            fields = sorted({self._plan.graph.state_names[i].partition(".")[0] for i in self._in_place})
            what = f"the {' and '.join(fields)} of {' and '.join(lost)}"
            print(f"fragmenta: {what} (too large for snapshots) was lost and fills anew", file=sys.stderr, flush=True)
        return kept

    def load(self, i: int, leaves: Sequence[Any], keepers: Container[int] = ()) -> int:
        """Order a process to continue from its part of these leaves, and one of the `keepers` from what stays in place;
        returns the number of the order."""
        program, replica = self._crew.places[i]
        arrays, names, constants = [], [], []
        for leaf, part in part_of_state(program, replica, leaves).items():
            array = np.asarray(part)
            if is_constant(array):
                constants.append((leaf, array.shape))
                array = array.reshape(-1)[:1]
            arrays.append(array)
            names.append(leaf)
        arrays += [np.asarray(value) for value in self.in_flight.values()]
        large = sorted(self._in_place & set(program.state))
        absent = [leaf for leaf in large if leaf not in names]
        return self._crew.peers[i].order(
            "load",
            arrays,
            leaves=names,
            constants=constants,
            kept=absent if i in keepers else [],
            empty=[] if i in keepers else absent,
            in_place=large,
            in_flight=list(self.in_flight),
        )

    def gather(self, running: Mapping[int, Peer], may_be_lost: Sequence[int], iteration: int) -> None:
        """Take the snapshot again from these processes, shard by shard; the part of a process that is not running, or
        that may be lost and is, stays as it was."""
        began, without = time.monotonic(), sorted(self._in_place)
        numbers = {i: peer.order("state", without=without) for i, peer in running.items()}
        states, queues, env_restarts = [], [], 0
        for i, (program, replica) in enumerate(self._crew.places):
            part = None
            if i in running:
                try:
                    answer, arrays = running[i].answer(numbers[i], self._setup.deadline)
                    names, env_restarts = answer["leaves"], env_restarts + answer["env_restarts"]
                    part, late = dict(zip(names, arrays, strict=False)), iter(arrays[len(names) :])
                    queues.append({(value, to): [next(late) for _ in range(n)] for value, to, n in answer["in_flight"]})
                except LostError:
                    if i not in may_be_lost:
                        raise
            states.append((program, part or part_of_state(program, replica, self.leaves)))
        self.leaves = collect(self._plan, states, self.leaves)
        self.in_flight = join_in_flight(self._plan, queues)
        self.iteration, self.env_restarts = iteration, env_restarts
        self._taken = time.monotonic()
        self._seconds = self._taken - began

    def whole(self, running: Mapping[int, Peer], without: Sequence[str]) -> list[Any]:
        """The leaves, with those that stay in the processes, but None for the leaves in the fields `without`."""
        left_out = positions(self._plan.graph, without)
        leaves: list[Any] = [None if i in left_out else leaf for i, leaf in enumerate(self.leaves)]
        if not self._in_place - left_out:
            return leaves
        others = sorted(set(range(len(leaves))) - (self._in_place - left_out))
        numbers = {i: peer.order("state", without=others) for i, peer in running.items()}
        states = []
        for i in sorted(numbers):  # not in the order in which processes have connected: parts are joined in this one
            answer, arrays = running[i].answer(numbers[i], self._setup.deadline)
            states.append((self._crew.places[i][0], dict(zip(answer["leaves"], arrays, strict=False))))
        return collect(self._plan, states, leaves)


def is_constant(array: np.ndarray) -> bool:
    """Whether a large array has the same element everywhere, so that this one is enough to send."""
    flat = array.reshape(-1)
    chunks = range(0, flat.size, CHUNK)
    return flat.size >= CHUNK and all((flat[start : start + CHUNK] == flat[0]).all() for start in chunks)
