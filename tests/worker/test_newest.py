"""The newest values of a replay in the midst of an iteration, when a stage has given its old memory away."""

import dataclasses
from typing import Any

import pytest

from fragmenta import DQN, R2D2, SAC, Algorithm, make, project, trace
from fragmenta.graph import Call, Compute, Program
from fragmenta.worker.newest import newest
from helpers import cpu_cluster

SMALL = {"num_envs": 4, "horizon": 4, "hidden": (8,), "batch_size": 16, "buffer_size": 256, "learning_starts": 32}


@dataclasses.dataclass
class Array:
    """Stands for an array of a worker."""

    name: str
    deleted: bool = False

    def is_deleted(self) -> bool:
        return self.deleted


def shard(algorithm: Algorithm, env: str) -> Program:
    plan = project(trace(algorithm, make(env)), "replay", cpu_cluster(5, 2), False)
    return next(program for program in plan.programs if program.fragment.name == "replay")


@pytest.mark.parametrize(
    ("algorithm", "env"),
    [
        (DQN(prioritized=True, **SMALL), "CartPole-v1"),
        pytest.param(SAC(prioritized=True, **SMALL), "Pendulum-v1", marks=pytest.mark.full),
        pytest.param(R2D2(num_envs=4, hidden=(8,), batch_size=16), "CartPole-v1", marks=pytest.mark.full),
    ],
)
def test_between_insert_and_prioritize_it_is_what_insert_returned(algorithm: Algorithm, env: str) -> None:
    program = shard(algorithm, env)
    graph, leaves = program.graph, sorted(program.graph.rebuildable)
    nodes = [instruction.node for instruction in program.instructions if isinstance(instruction, Compute)]
    calls = {node.stage: node for node in nodes if isinstance(node, Call)}
    inserted = {value.id for value in calls["insert"].outputs}
    values: dict[Any, Any] = {graph.state_inputs[i].id: Array(f"old {graph.state_names[i]}") for i in leaves}
    assert newest(program, values, leaves) == {i: values[graph.state_inputs[i].id] for i in leaves}

    for value in calls["insert"].inputs:
        if value.id in values:
            values[value.id].deleted = value.id not in {v.id for v in calls["prioritize"].inputs}
    values |= {key: Array("inserted") for key in inserted}
    held = newest(program, values, leaves)
    assert held is not None
    assert sum(array.name == "inserted" for array in held.values()) == len(inserted)
    assert not any(array.deleted for array in held.values())

    for key in inserted - {graph.state_outputs[i].id for i in leaves}:
        values[key].deleted = True
    assert newest(program, values, leaves) is None, "given to `prioritize`, which has not returned"
    values |= {graph.state_outputs[i].id: Array("new") for i in leaves}
    assert newest(program, values, leaves) == {i: Array("new") for i in leaves}


def test_leaves_that_the_program_does_not_hold_are_left_out() -> None:
    program = shard(DQN(**SMALL), "CartPole-v1")
    learner = next(i for i, name in enumerate(program.graph.state_names) if name.startswith("learner"))
    assert newest(program, {}, [learner]) == {}
