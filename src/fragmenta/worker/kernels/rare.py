"""Work that is only for some rows, such as the reset of an ended episode: left out of rounds where no row needs it."""

import dataclasses

from fragmenta.worker.kernels.ir import Kind, Op, Reg, RowLoop, reads_of

COSTLY = "threefry"
"""What makes work worth a question to all lanes."""


def rare_work(body: tuple[Op, ...], results: tuple[Reg, ...] = ()) -> tuple[Op, ...]:
    """The same body, in whose loops an operation that is read only where a condition holds has it as attribute `when`.

    Operations with one condition stand together, before the first choice by it.
    """
    ops = [
        dataclasses.replace(op, body=rare_work(op.body, op.results)) if isinstance(op, RowLoop) else op for op in body
    ]
    if not results:
        return tuple(ops)
    users: dict[Reg, list[Op]] = {}
    for op in ops:
        for reg in reads_of(op):
            users.setdefault(reg, []).append(op)
    choices: dict[Reg, list[Op]] = {}
    for op in ops:
        if op.name == "select" and op.inputs[0].kind is Kind.ROW:
            choices.setdefault(op.inputs[0], []).append(op)
    for condition, chosen in choices.items():
        rare = _only_for(ops, users, chosen, set(results))
        if any(op.name == COSTLY for op in rare):
            marked = [dataclasses.replace(op, attributes={**op.attributes, "when": condition}) for op in rare]
            rest = [op for op in ops if not any(op is other for other in rare)]
            place = next(i for i, op in enumerate(rest) if any(op is choice for choice in chosen))
            ops = [*rest[:place], *marked, *rest[place:]]
            users = {reg: [op for op in ops if reg in reads_of(op)] for reg in users}
    return tuple(ops)


def _only_for(ops: list[Op], users: dict[Reg, list[Op]], choices: list[Op], results: set[Reg]) -> list[Op]:
    """The operations whose results are read by each other, and by `choices` as what holds if their condition does."""
    inside: set[int] = set()
    choosing = {id(op) for op in choices}
    for op in reversed(ops):
        if isinstance(op, RowLoop) or "when" in op.attributes or not results.isdisjoint(op.outputs):
            continue
        if any(reg.kind not in (Kind.ROW, Kind.TILE) for reg in op.outputs):
            continue
        read = [(reg, user) for reg in op.outputs for user in users.get(reg, [])]
        if read and all(
            id(user) in inside
            or (id(user) in choosing and reg is user.inputs[1] and sum(x is reg for x in user.inputs) == 1)
            for reg, user in read
        ):
            inside.add(id(op))
    return [op for op in ops if id(op) in inside]
