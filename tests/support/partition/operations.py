"""All operations, by name."""

from partition.algebra import ALGEBRA
from partition.control import CONTROL
from partition.drawing import DRAWING
from partition.elementwise import ELEMENTWISE
from partition.indexing import INDEXING
from partition.reducing import CUMULATIVE, REDUCTIONS, SORTING
from partition.shaping import SHAPING
from partition.table import Operation

_ALL = (*ELEMENTWISE, *REDUCTIONS, *CUMULATIVE, *SORTING, *SHAPING, *INDEXING, *ALGEBRA, *DRAWING, *CONTROL)

OPERATIONS: dict[str, Operation] = {operation.name: operation for operation in _ALL}

assert len(OPERATIONS) == len(_ALL), "two operations have the same name"
