"""`fragmenta policies`: what can be chosen, what would cross under each, and what each is good for."""

import dataclasses
import inspect
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from fragmenta.cli.arguments import read
from fragmenta.coordinator.plan import project
from fragmenta.coordinator.trace import trace
from fragmenta.envs import make
from fragmenta.errors import ConfigError
from fragmenta.graph import Graph, Plan
from fragmenta.graph.show import byte_text, delivery_text, operator_text
from fragmenta.policies import ALIASES, POLICIES, Cluster

DEFAULT = ["ppo", "CartPole-v1"]


@dataclasses.dataclass(frozen=True)
class PoliciesOptions:
    """For how many replicas to show the policies."""

    replicas: int = 2
    """How often each policy's replicated fragment runs."""


def run(arguments: list[str]) -> int:
    """Print every policy with its fragments, its operators, the bytes that cross, and what it is good for."""
    if not [a for a in arguments if not a.startswith("-")][:1] or arguments[0].startswith("--replicas"):
        arguments = DEFAULT + arguments
    algorithm, env, options = read("policies", PoliciesOptions, arguments)
    environment = make(env)
    algorithm.validate(environment)
    graph = trace(algorithm, environment)
    table = Table(show_lines=True)
    for column in ("policy", "fragments", "what crosses per iteration", "what it is good for"):
        table.add_column(column)
    for name, policy in POLICIES.items():
        also = [alias for alias, target in ALIASES.items() if target == name]
        title = name + (f"\n(also {', '.join(also)})" if also else "")
        table.add_row(title, *_describe(graph, name, options.replicas), inspect.getdoc(policy) or "")
    console = Console()
    console.print(
        f"{type(algorithm).__name__} on {env}, {algorithm.num_envs} environments, {options.replicas} replicas"
    )
    console.print(table)
    print("Your own: a function (stages, cluster) -> list of Fragment, named as --policy module:function")
    return 0


def _describe(graph: Graph, policy: str, replicas: int) -> tuple[str, str]:
    """The fragments and the crossings under a policy, on as many devices as it can use; nothing runs."""
    devices = tuple(f"device:{i}" for i in range(replicas + 1))
    try:
        plan = project(graph, policy, Cluster(devices, replicas), merge=False)
    except ConfigError as error:
        return "-", f"not for this algorithm: {error}"
    fragments = [
        f"{p.fragment.name}: {', '.join(p.fragment.stages)}{f' x{p.fragment.replicas}' if p.fragment.replicas > 1 else ''}"
        for p in plan.programs
    ]
    return "\n".join(fragments), "\n".join(_crossings(plan)) or "nothing"


def _crossings(plan: Plan) -> Iterator[str]:
    groups: dict[tuple[str, str, str], int] = {}
    for i in plan.interfaces:
        how = operator_text(i.operator, i.reduction) + delivery_text(i.delivery)
        key = i.producer, i.consumer, how + (f", x{i.times}" if i.times > 1 else "")
        groups[key] = groups.get(key, 0) + i.bytes_per_iteration
    for (producer, consumer, how), size in groups.items():
        yield f"{producer} -> {consumer}: {how}: {byte_text(size)}"
    for program in plan.programs:
        for c in program.collectives():
            how = operator_text(c.operator, c.reduction) + (f", x{c.times}" if c.times > 1 else "")
            yield f"among {program.fragment.name}: {how}: {byte_text(c.bytes_per_iteration)}"
