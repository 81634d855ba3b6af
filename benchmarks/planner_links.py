"""Predicted against measured speed where values cross processes: on the cores of this machine, and over networks.

`processes` runs a few programs in 1, 2, 4, 8 and 16 processes, as far as there are cores. `network` runs two workers in
network namespaces, each on its own core, with a limited link between them; the processes are started there directly
instead of by Ray, which takes no part in training. Every third case is kept apart: nothing was tuned on it.
"""

import argparse
import dataclasses
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from planner_report import percentile

COUNTS = 1, 2, 4, 8, 16
PROGRAMS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("single_learner_coarse", "gymnasium:CartPole-v1", {"num_envs": 64, "horizon": 128}),
    ("single_learner_coarse", "planner_envs:CostlyEnv", {"num_envs": 32, "horizon": 64}),
    ("multi_learner", "CartPole-v1", {"num_envs": 256, "horizon": 64}),
)
"""Distribution policies, environments and hyper-parameters of PPO; the environments are divided among the processes."""
SECONDS, NETWORK_SECONDS = 2.0, 5.0
"""How long a case is trained; over a network longer, because connections take seconds to find their rate."""


def processes() -> Iterator[dict[str, Any]]:
    """The cases of `processes`, one after the other."""
    os.environ["JAX_PLATFORMS"] = "cpu"  # also of the processes
    from fragmenta.algorithms import PPO
    from fragmenta.checks.trial import measured_rate
    from fragmenta.engines import EngineOptions, engine_named
    from fragmenta.engines.hardware import use_cpu_devices
    from fragmenta.envs import EnvOptions, make
    from fragmenta.planner.candidates import candidate_of
    from fragmenta.planner.predicting import predictor
    from fragmenta.planner.profile import Profile
    from fragmenta.tracing.trace import trace
    from fragmenta_host.options import cores

    use_cpu_devices(cores())
    profile = Profile()
    for policy, env_name, settings in PROGRAMS:
        algorithm, env = PPO(**settings), make(env_name)
        graph = trace(algorithm, env)
        predict = predictor(algorithm, env, graph, profile)
        for count in (count for count in COUNTS if count <= cores()):
            cluster = engine_named("processes").cluster(EngineOptions(), replicas=count)
            candidate = candidate_of(graph, policy, "processes", cluster, merge=True)
            assert candidate is not None
            began = time.monotonic()
            predict.measure(candidate, math.inf)
            prediction = predict.predict(candidate)
            took = time.monotonic() - began
            rate = measured_rate(algorithm, env_name, EnvOptions(), prediction, SECONDS)
            yield {
                "what": f"{policy} on {env_name.partition(':')[2] or env_name}",
                "where": f"{count} processes",
                "predicted": prediction.steps_per_second,
                "measured": rate,
                "seconds": [took, time.monotonic() - began],
            }
    print("channels:", json.dumps(profile.notes["channels"]), flush=True)


LINKS = (1, 0.2), (1, 1), (1, 6), (10, 0.2), (10, 1), (10, 6)
"""Gbit/s, and milliseconds one way."""
OVER_LINKS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("single_learner_coarse", "large values", {"num_envs": 1024, "horizon": 32, "epochs": 1, "minibatches": 4}),
    ("single_learner_fine", "small values often", {"num_envs": 16, "horizon": 32, "epochs": 1, "minibatches": 4}),
)


def network() -> Iterator[dict[str, Any]]:
    """The cases of `network`, one after the other."""
    from limited_link import LimitedLink, bare_link

    with tempfile.TemporaryDirectory() as folder:
        for gbit, milliseconds in LINKS:
            with LimitedLink(gbit, milliseconds / 1e3) as link:
                latency, bandwidth = bare_link(link)
                where = f"{gbit} Gbit/s, {milliseconds} ms"
                print(f"{where}: bare sockets {latency * 1e3:.2f} ms, {bandwidth * 8e-9:.2f} Gbit/s", file=sys.stderr)
                order = {
                    "spaces": link.spaces,
                    "addresses": link.addresses,
                    "link": [latency, bandwidth],
                    "profile": f"{folder}/profile.json",
                }
                inside = ["ip", "netns", "exec", link.spaces[0], "taskset", "-c", "0"]
                command = [*inside, sys.executable, __file__, "--inside", json.dumps(order)]
                text = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
                for row in json.loads(text.strip().splitlines()[-1]):
                    yield row | {"where": where}


def inside(order: dict[str, Any]) -> list[dict[str, Any]]:
    """The cases over one link; this process is at one end of it."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    from fragmenta.algorithms import PPO
    from fragmenta.checks.trial import measured_rate
    from fragmenta.engines import kinds
    from fragmenta.engines.this_machine import SHARED_MEMORY, measured_core
    from fragmenta.envs import EnvOptions, make
    from fragmenta.planner.candidates import candidate_of
    from fragmenta.planner.predicting import predictor
    from fragmenta.planner.profile import Profile
    from fragmenta.policies import Cluster
    from fragmenta.policies.machines import Link, Machines, Node, cpu_devices
    from fragmenta.tracing.trace import trace

    start_in_spaces(kinds, order)
    core = measured_core(1)
    nodes = [Node(f"node-{i}", 1, 2**33, cpu_devices(1, 1, 2**33, core), SHARED_MEMORY, core) for i in range(2)]
    machines, profile, env = (
        Machines(tuple(nodes), Link(*order["link"])),
        Profile(Path(order["profile"])),
        "CartPole-v1",
    )
    rows = []
    for policy, what, settings in OVER_LINKS:
        algorithm = PPO(**settings)
        graph = trace(algorithm, make(env))
        candidate = candidate_of(graph, policy, "processes", Cluster(machines.devices, 1, apart=True), merge=True)
        assert candidate is not None
        predict = predictor(algorithm, make(env), graph, profile)
        predict.machines = machines  # with what is measured here: both ends of the link compute as fast
        predict.measure(candidate, math.inf)
        profile.keep()
        prediction = predict.predict(candidate)
        rate = measured_rate(algorithm, env, EnvOptions(), prediction, NETWORK_SECONDS)
        sizes = sorted({interface.value.bytes for interface in candidate.plan.interfaces})
        rows.append(
            {
                "what": f"{policy}: {what}, at most {sizes[-1]:,} bytes",
                "predicted": prediction.steps_per_second,
                "measured": rate,
            }
        )
    return rows


def start_in_spaces(kinds: Any, order: dict[str, Any]) -> None:
    """Make the engine of processes start each worker at the end of the link that its device belongs to."""
    from fragmenta.engines.processes import ProcessLauncher
    from fragmenta.engines.replica import places
    from fragmenta_launch import children

    class SpaceLauncher(ProcessLauncher):
        address = order["addresses"][0]

    def start(setup: Any) -> Any:
        ends = [int(program.fragment.devices[i].partition(":")[2]) for program, i in places(setup.plan)]
        starting = iter(ends)

        def spawn() -> subprocess.Popen[bytes]:
            end = next(starting)
            paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
            prefix = ["ip", "netns", "exec", order["spaces"][end], "taskset", "-c", str(end)]
            return subprocess.Popen(
                [*prefix, sys.executable, "-m", "fragmenta_launch.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                process_group=0,
                env={**os.environ, "PYTHONPATH": paths, "FRAGMENTA_NODE": f"node-{end}"},
            )

        children._spawn = spawn
        return kinds.ClusterEngine(setup, SpaceLauncher(setup.logs))

    kinds.ENGINES["processes"] = dataclasses.replace(kinds.ENGINES["processes"], start=start)


PARTS = {"processes": processes, "network": network}


def is_apart(number: int) -> bool:
    """Whether a case is kept apart."""
    return number % 3 == 2


def summary(rows: list[dict[str, Any]]) -> str:
    """The errors of both parts, as text."""
    lines = []
    for title, part in (("tuned on", False), ("kept apart", True)):
        errors = [abs(row["predicted"] / row["measured"] - 1) for i, row in enumerate(rows) if is_apart(i) == part]
        if errors:
            middle, most = percentile(errors, 0.5), percentile(errors, 0.9)
            lines.append(f"{title}: {len(errors)} cases, error {middle:.1%} (median), {most:.1%} (90th percentile)")
    return "\n".join(lines)


def line_of(number: int, row: dict[str, Any]) -> str:
    """A row of the table in Markdown."""
    mark = " *" if is_apart(number) else ""
    error = row["predicted"] / row["measured"] - 1
    return f"| {row['what']}{mark} | {row['where']} | {row['predicted']:,.0f} | {row['measured']:,.0f} | {error:+.0%} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=tuple(PARTS), default="processes")
    parser.add_argument("--out", type=Path, help="the file for the results, as JSON")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(inside(json.loads(options.inside))))
        return
    print("| what | where | predicted | measured | error |\n|---|---|---|---|---|", flush=True)
    rows = []
    for row in PARTS[options.part]():
        print(line_of(len(rows), row), flush=True)
        rows.append(row)
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(rows))
    print(summary(rows))


if __name__ == "__main__":
    main()
