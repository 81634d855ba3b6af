"""The state of all processes as the coordinator has it: what they resume from after a loss.

Leaves that fill anew as training goes on (`Algorithm.rebuildable`: a replay) are part of it as long as they are small.
Larger ones stay in place, in the processes: copying gigabytes again and again would take more time than training.
After a loss they are used where they are, with their newest steps marked as the end of an episode, if no process that
holds some of them was lost and all have come equally far; otherwise they fill anew. All other leaves resume from the
snapshot.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fragmenta.engines.base import Setup
from fragmenta.engines.control import LostError, Peer
from fragmenta.engines.crew import Crew
from fragmenta.engines.dispatch import collect, part_of_state, positions
from fragmenta.engines.in_flight import InFlight, join_in_flight
from fragmenta.engines.initial import initial_leaves
from fragmenta.graph import Graph

IN_PLACE_BYTES = 256 << 20
"""Up to how many bytes rebuildable leaves, all together, are part of snapshots."""
SNAPSHOT_SECONDS = 3.0
"""The least time between two snapshots, except those that the caller asks for."""
SNAPSHOT_SHARE = 0.05
"""The largest share of the time that they take."""
CHUNK = 1 << 22
"""Elements that are looked at together, to find out whether all elements of an array are the same."""


def in_place(graph: Graph) -> frozenset[int]:
    """The leaves that stay where they are: the rebuildable ones, if they are large."""
    size = sum(graph.state_inputs[i].bytes for i in graph.rebuildable)
    return graph.rebuildable if size > IN_PLACE_BYTES else frozenset()


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
        self._kept = False
        """Whether the processes load the next state around the leaves that they have in place."""

    @property
    def is_due(self) -> bool:
        """Whether it is time for the next one."""
        return time.monotonic() - self._taken > max(SNAPSHOT_SECONDS, self._seconds / SNAPSHOT_SHARE)

    def leave_in_place(self) -> None:
        """Forget the leaves that stay in the processes, which have loaded them."""
        self.leaves = [None if i in self._in_place else leaf for i, leaf in enumerate(self.leaves)]
        self._kept = False

    def find_in_place(self) -> None:
        """After a loss: let the processes use the leaves that they have in place, or let these fill anew."""
        if not self._in_place or all(self.leaves[i] is not None for i in self._in_place):
            return
        holders = [i for i, (program, _) in enumerate(self._crew.places) if self._in_place & set(program.state)]
        answers = self._crew.ask({i: {"leaves": sorted(self._in_place)} for i in holders}, "held", self._crew.patience)
        counts = {answer["iterations"] for answer, _ in answers.values()}
        self._kept = len(counts) == 1 and None not in counts
        if self._kept:
            return
        for i, leaf in zip(sorted(self._in_place), self._initial(), strict=True):
            self.leaves[i] = leaf
        fields = sorted({self._plan.graph.state_names[i].partition(".")[0] for i in self._in_place})
        size = sum(self._plan.graph.state_inputs[i].bytes for i in self._in_place) / 1e9
        lost = f"the {' and '.join(fields)} ({size:.1f} GB, too large for snapshots) was lost and fills anew"
        print(f"fragmenta: {lost}", file=sys.stderr, flush=True)

    def load(self, i: int, leaves: Sequence[Any]) -> int:
        """Order a process to continue from its part of these leaves; returns the number of the order."""
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
        kept = sorted(self._in_place & set(program.state)) if self._kept else []
        flights = list(self.in_flight)
        return self._crew.peers[i].order(
            "load", arrays, leaves=names, constants=constants, kept=kept, in_flight=flights
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
        for i, number in numbers.items():
            answer, arrays = running[i].answer(number, self._setup.deadline)
            states.append((self._crew.places[i][0], dict(zip(answer["leaves"], arrays, strict=False))))
        return collect(self._plan, states, leaves)

    def _initial(self) -> list[Any]:
        """The leaves that stay in place, as they are before the first iteration; nothing else is computed."""
        setup, chosen = self._setup, sorted(self._in_place)
        key = jax.random.key(setup.seed)
        return initial_leaves(setup.algorithm, setup.env, key, chosen, setup.cluster.replay)


def is_constant(array: np.ndarray) -> bool:
    """Whether a large array has the same element everywhere, so that this one is enough to send."""
    flat = array.reshape(-1)
    chunks = range(0, flat.size, CHUNK)
    return flat.size >= CHUNK and all((flat[start : start + CHUNK] == flat[0]).all() for start in chunks)
