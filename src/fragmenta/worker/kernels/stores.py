"""What a kernel writes to memory: a value of all rows, as a store of each of its registers."""

from typing import Any

import numpy as np

from fragmenta.worker.kernels.ir import Address, Kind, Reg
from fragmenta.worker.kernels.values import WIDE, Builder, Memory, NoRule, Rows, contiguous


def store(
    builder: Builder, value: Any, shape: tuple[int, ...], array: int, lead: tuple[tuple[Reg, int], ...] = ()
) -> None:
    """Write a value to an output array."""
    default = builder.default_tags(shape)
    tags = value.tags if isinstance(value, Rows) else default
    wide = value.wide if isinstance(value, Rows) else None
    if wide is None:
        wide = next(
            (i for i in reversed(range(len(shape))) if isinstance(value, Memory) and not tags[i] and shape[i] >= WIDE),
            None,
        )
    rows = builder.rows(value, shape, tags, wide)
    tags = rows.tags
    if not any(tags) and all(rows.regs.shape[i] == 1 and i != wide for i, tag in enumerate(default) if tag):
        tags = default  # the same number in every row
    strides = contiguous(shape)
    terms = (*lead, *builder.row_terms(tags, strides))
    full = [1 if tag or i == wide else size for i, (tag, size) in enumerate(zip(tags, shape, strict=True))]
    regs: Any = np.broadcast_to(rows.regs, full)
    if regs.size > 4 * 128:
        raise NoRule(f"{regs.size} stores per row")
    for position in np.ndindex(*regs.shape):
        offset = sum(i * stride for i, stride in zip(position, strides, strict=True))
        address, reg = Address(array, offset, terms), regs[position]
        once = not any(tags)
        if wide is None:
            builder.effect("store", (reg,), address=address, once=once)
            continue
        if reg.kind is not Kind.TILE:
            reg = builder.emit("widen", (reg,), Kind.TILE, reg.dtype, shape[wide])
        builder.effect("store_tile", (reg,), address=address, stride=strides[wide], once=once)
