"""How much memory a plan needs on every device."""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from fragmenta.graph import Plan
from fragmenta.graph.layout import WHOLE
from fragmenta.graph.words import byte_text
from fragmenta.planner.plan_costs import PlanCosts
from fragmenta.planner.sampling import device_of
from fragmenta.planner.units import Unit
from fragmenta.policies.machines import Machines


@dataclasses.dataclass(frozen=True)
class FragmentMemory:
    """Bytes that one replica of a fragment needs on its device."""

    fragment: str
    state: int
    """Of the state's leaves, or its parts of them."""
    working: int
    """Besides that, at once, in the segment that needs most."""
    is_estimate: bool
    """Whether what a segment needs was taken from the sizes of its values, not from what XLA says."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.state + self.working

    def __str__(self) -> str:
        return f"{byte_text(self.total)}{'~' if self.is_estimate else ''}"


def memory_of(plan: Plan, costs: PlanCosts) -> list[FragmentMemory]:
    """The memory of each fragment, per device."""
    needs = []
    for program in plan.programs:
        units = [unit for unit in costs.units if unit.schedule.program is program]
        shared = program.parts // units[0].width if units and program.together and program.replicas == 1 else 1
        kept = [program.graph.state_inputs[i] for i in program.state]
        state = sum(value.bytes * (shared if program.layout(value) != WHOLE else 1) for value in kept)
        known = {unit: costs.unit_cost(unit).memory for unit in units}
        kept_keys = {value.id for value in kept}
        working = [shared * _passing(unit, kept_keys) + (known[unit] or shared * unit.peak) for unit in units]
        is_estimate = any(memory is None for memory in known.values())
        needs.append(FragmentMemory(program.fragment.name, state, max(working, default=0), is_estimate))
    return needs


def shortage(plan: Plan, needs: Sequence[FragmentMemory], machines: Machines) -> str | None:
    """What does not fit: a line on the first device that has too little memory; devices of a CPU share their node's."""
    used: dict[str, int] = defaultdict(int)
    room: dict[str, int] = {}
    for program, need in zip(plan.programs, needs, strict=True):
        count = len(set(program.fragment.devices)) if program.together and program.replicas == 1 else program.replicas
        for replica in range(count):
            name = device_of(program, replica)
            device, node = machines.device(name), machines.node_of(name)
            place = node.name if device.kind == "cpu" else name
            used[place] += need.total
            room[place] = node.memory if device.kind == "cpu" else device.memory
    for place, size in used.items():
        if size > room[place]:
            return f"needs {byte_text(size)} on {place}, which has {byte_text(room[place])}"
    return None


def _passing(unit: Unit, kept: set[Any]) -> int:
    """Bytes of the inputs that are not of the state."""
    shapes = unit.schedule.shapes
    return sum(shapes[key].bytes for key in unit.segment.inputs if key in shapes and key not in kept)
