"""`fragmenta graph`: the graph under a policy, as a listing or a drawing."""

import dataclasses
import shutil
import subprocess
import sys
from typing import Literal

from fragmenta.cli.arguments import ClusterOptions, PolicyName, read
from fragmenta.coordinator.plan import project
from fragmenta.coordinator.trace import trace
from fragmenta.envs import EnvOptions, make
from fragmenta.errors import ConfigError
from fragmenta.graph.show import to_dot, to_mermaid


@dataclasses.dataclass(frozen=True)
class GraphOptions(ClusterOptions, EnvOptions):
    """What to show."""

    policy: PolicyName = "single_learner_coarse"
    """Which part of the loop runs where."""
    merge: bool = False
    """Join fragments and replicas that share a device, as training does."""
    format: Literal["text", "mermaid", "svg"] = "text"
    """A listing, a Mermaid flowchart, or an SVG drawing through graphviz."""


def run(arguments: list[str]) -> int:
    """Print the graph and the programs cut from it."""
    algorithm, env, options = read("graph", GraphOptions, arguments)
    cluster = options.cluster()  # before anything makes an array, which would fix the number of devices
    cluster = dataclasses.replace(cluster, replicas=cluster.replicas or 1)
    environment = make(env, options)
    algorithm.validate(environment)
    if options.format == "svg" and shutil.which("dot") is None:
        raise ConfigError("format svg needs graphviz' dot, which is not installed: install graphviz, or use mermaid")
    graph = trace(algorithm, environment)
    plan = project(graph, options.policy, cluster, options.merge)
    if options.format == "mermaid":
        sys.stdout.write(to_mermaid(plan))
    elif options.format == "svg":
        drawing = subprocess.run(["dot", "-Tsvg"], input=to_dot(plan), capture_output=True, text=True, check=True)
        sys.stdout.write(drawing.stdout)
    else:
        print(graph, plan, sep="\n\n")
    return 0
