"""Predicted against measured speed where values cross processes: on the cores of this machine, and over networks.

`processes` runs a few programs in 1, 2, 4, 8 and 16 processes, as far as there are cores. Every third case is kept
apart: nothing was tuned on it.
"""

import argparse
import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from planner import percentile

COUNTS = 1, 2, 4, 8, 16
PROGRAMS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("single_learner_coarse", "gymnasium:CartPole-v1", {"num_envs": 64, "horizon": 128}),
    ("single_learner_coarse", "planner_envs:CostlyEnv", {"num_envs": 32, "horizon": 64}),
    ("multi_learner", "CartPole-v1", {"num_envs": 256, "horizon": 64}),
)
"""Distribution policies, environments and hyper-parameters of PPO; the environments are divided among the processes."""
SECONDS = 2.0
"""How long a case is trained."""


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


PARTS = {"processes": processes}


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
    options = parser.parse_args()
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
