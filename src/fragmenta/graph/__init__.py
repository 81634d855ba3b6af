"""What the system knows of a training loop: the traced graph, and one local program per fragment cut from it."""

from fragmenta.graph.fragment import Fragment
from fragmenta.graph.ir import Block, Call, Glue, Graph, Loop, Node, Value
from fragmenta.graph.program import Instruction, Interface, Operator, Plan, Program, Recv, Repeat, Run, Send

__all__ = [
    "Block",
    "Call",
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
    "Run",
    "Send",
    "Value",
]
