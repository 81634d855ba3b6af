"""`fragmenta policies`: list the distribution policies, what crosses under each, and what each is good for."""

import dataclasses
import inspect
from collections.abc import Iterator

from fragmenta.cli.arguments import HELP, EnvFlags, read
from fragmenta.coordinator.plan import project
from fragmenta.envs import make
from fragmenta.errors import ConfigError
from fragmenta.graph import Graph, Plan
from fragmenta.graph.price import prices
from fragmenta.graph.show import delivery_text
from fragmenta.graph.words import byte_text
from fragmenta.policies import ALIASES, POLICIES, Cluster
from fragmenta.tracing.trace import trace

DEFAULT = ["ppo", "CartPole-v1"]


@dataclasses.dataclass(frozen=True)
class ReplicaOptions:
    """The number of replicas to show the distribution policies with."""

    replicas: int = 2
    """Replicas of each distribution policy's replicated fragment."""


@dataclasses.dataclass(frozen=True)
class PoliciesOptions:
    """All flags of `fragmenta policies` but for the hyper-parameters, in the order of the help."""

    placement: ReplicaOptions
    environment: EnvFlags


def run(arguments: list[str]) -> int:
    """Print every distribution policy with its fragments, operators, the bytes that cross, and what it is good for."""
    if (not arguments or arguments[0].startswith("--")) and not HELP & set(arguments):
        arguments = DEFAULT + arguments
    algorithm, env, options = read("policies", PoliciesOptions, arguments)
    replicas = options.placement.replicas
    if replicas < 1:
        raise ConfigError(f"replicas is {replicas}: it must be at least 1")
    environment = make(env, options.environment)
    algorithm.validate(environment)
    graph = trace(algorithm, environment)
    print(f"{type(algorithm).__name__} on {env}, {algorithm.num_envs} environments, {replicas} replicas")
    for name, policy in POLICIES.items():
        aliases = [alias for alias, target in ALIASES.items() if target == name]
        print(f"\n{name}" + (f" (also {', '.join(aliases)})" if aliases else ""))
        lines = [*(inspect.getdoc(policy) or "").splitlines(), *_describe(graph, name, replicas)]
        for line in filter(None, lines):
            print(f"    {line}")
    print("\nYour own: a function (stages, cluster) -> list of Fragment, passed as --policy module:function")
    return 0


def _describe(graph: Graph, policy: str, replicas: int) -> Iterator[str]:
    """One line per fragment and crossing under a distribution policy, on all the devices it can use; runs nothing."""
    devices = tuple(f"device:{i}" for i in range(replicas + 1))
    try:
        plan = project(graph, policy, Cluster(devices, replicas), merge=False)
    except ConfigError as error:
        yield f"not for this algorithm: {error}"
        return
    for fragment in (program.fragment for program in plan.programs):
        yield (
            f"- {fragment.name}"
            + (f" x{fragment.replicas}" if fragment.replicas > 1 else "")
            + ": "
            + ", ".join(fragment.stages)
        )
    crossings = list(_crossings(plan))
    yield from crossings or ["nothing crosses"]
    total = sum(i.bytes_per_iteration for i in plan.interfaces)
    among = sum(c.bytes_per_iteration for program in plan.programs for c in program.collectives())
    yield f"per iteration {byte_text(total)} between fragments, {byte_text(among)} among replicas"
    yield from (f"cost of replicas: {price}" for price in prices(plan))


def _crossings(plan: Plan) -> Iterator[str]:
    groups: dict[tuple[str, str, str], int] = {}
    for i in plan.interfaces:
        how = i.operator.value + delivery_text(i.delivery)
        key = i.producer, i.consumer, how + (f", x{i.times}" if i.times > 1 else "")
        groups[key] = groups.get(key, 0) + i.bytes_per_iteration
    for (producer, consumer, how), size in groups.items():
        yield f"{producer} -> {consumer}: {how}: {byte_text(size)}"
    for program in plan.programs:
        for c in program.collectives():
            how = c.operator.value + (f", x{c.times}" if c.times > 1 else "")
            yield f"among {program.fragment.name}: {how}: {byte_text(c.bytes_per_iteration)}"
