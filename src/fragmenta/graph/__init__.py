"""The representation of a training loop: the traced graph, and the program of each fragment that is cut from it."""

from fragmenta.graph.fragment import Delivery, Fragment
from fragmenta.graph.ir import Block, Call, Glue, Graph, Loop, Node, Share, Value
from fragmenta.graph.program import (
    Collective,
    Compute,
    Instruction,
    Interface,
    Operator,
    Plan,
    Program,
    Recv,
    Repeat,
    Send,
)

__all__ = [
    "Block",
    "Call",
    "Collective",
    "Compute",
    "Delivery",
    "Fragment",
    "Glue",
    "Graph",
    "Instruction",
    "Interface",
    "Loop",
    "Node",
    "Operator",
    "Plan",
    "Program",
    "Recv",
    "Repeat",
    "Send",
    "Share",
    "Value",
]
