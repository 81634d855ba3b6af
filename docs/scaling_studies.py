"""The tables and charts of scaling.md, simulated: `python docs/scaling_studies.py [STUDY ...]` makes them again."""

import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import fragmenta
from fragmenta.algorithms import Algorithm
from fragmenta.envs import Environment, make
from fragmenta.envs.particles import SimpleSpread
from fragmenta.pictures.scaling_picture import draw_scaling
from fragmenta.planner.candidates import candidate_of
from fragmenta.planner.costs import Cost
from fragmenta.planner.predicting import predictor
from fragmenta.planner.profile import Profile
from fragmenta.planner.scaling import ScalingCurve, machines_with, scale
from fragmenta.planner.words import rate_text
from fragmenta.policies import Cluster
from fragmenta.policies.machine_files import read_machines
from fragmenta.policies.machines import MODELS, Link, Machines
from fragmenta.profiling.timings import busiest
from fragmenta.tracing.trace import trace

DOCS = Path(__file__).parent
PAGE = DOCS / "scaling.md"
STEP_SECONDS = 1e-4
"""Of one HalfCheetah on one core, as bare stepping takes on the two cores of docs/environments.md."""
CORES_PER_GPU = 6
"""A node of msrl-azure has 24 cores and four GPUs."""
COARSE, FINE, MULTI = "single_learner_coarse", "single_learner_fine", "multi_learner"
SCALED = ("fused", COARSE, FINE, "central")


def on_cores(rows: float) -> Cost:
    """A step of so many environments on the cores of one GPU."""
    return Cost(STEP_SECONDS * rows / min(rows, CORES_PER_GPU), CORES_PER_GPU)


def rate(
    algorithm: Algorithm,
    env: Environment,
    machines: Machines,
    policy: str,
    step: Callable[[float], Cost] = on_cores,
) -> tuple[float, str | None]:
    """Steps per second on all devices, and the busiest fragment; `step` is that of a replica's host environments."""
    cluster = Cluster(machines.devices, len(machines.devices), apart=len(machines.nodes) > 1, machines=machines)
    engine, graph = "ray" if cluster.apart else "local", trace(algorithm, env)
    candidate = candidate_of(graph, policy, engine, cluster, merge=True)
    assert candidate is not None, policy
    rows = algorithm.num_envs / candidate.plan.lanes
    given = step(rows) if env.host_pool else None
    prediction = predictor(algorithm, env, graph, Profile(), machines, given).predict(candidate)
    return prediction.steps_per_second, busiest(prediction.simulation.timings)


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def against(what: str, cases: Sequence[tuple[str, Algorithm, Machines]], env: Environment) -> str:
    """Coarse beside multi-learner."""
    rows = []
    for name, algorithm, machines in cases:
        coarse, busy = rate(algorithm, env, machines, COARSE)
        multi, _ = rate(algorithm, env, machines, MULTI)
        rows.append((name, rate_text(coarse), rate_text(multi), f"{multi / coarse:.2f}", f"`{busy}`"))
    return table((what, f"`{COARSE}`", f"`{MULTI}`", "multi / coarse", "busiest under coarse"), rows)


def h200() -> str:
    (node,) = read_machines("dgx-h100").nodes
    machines = Machines((dataclasses.replace(node, devices=(MODELS["H200"],)),), node.link)
    rows = []
    for envs, measured in ((2_048, 47.0e6), (16_384, 106.9e6), (65_536, 125e6)):
        algorithm = fragmenta.PPO(num_envs=envs, minibatches=4)
        predicted, _ = rate(algorithm, make("CartPole-v1"), machines, "fused")
        rows.append((f"{envs:,}", rate_text(measured), rate_text(predicted), f"{predicted / measured - 1:+.1%}"))
    return table(("environments", "measured", "estimated", "error"), rows)


def cheetah(envs: int, hidden: tuple[int, ...] = (64, 64)) -> Algorithm:
    return fragmenta.PPO(num_envs=envs, hidden=hidden, minibatches=4)


def environments() -> str:
    azure = read_machines("msrl-azure")
    cases = [(f"{n:,}", cheetah(n), azure) for n in (64, 128, 320, 640, 1_280, 5_120, 20_480)]
    return against("environments", cases, make("HalfCheetah-v5"))


def latency() -> str:
    azure = read_machines("msrl-azure")
    slow = [
        (ms, dataclasses.replace(azure, link=Link(ms / 1e3, azure.link.bandwidth))) for ms in (0.2, 0.5, 1, 2, 4, 6)
    ]
    return against("latency, ms", [(str(ms), cheetah(320), machines) for ms, machines in slow], make("HalfCheetah-v5"))


def network() -> str:
    azure = read_machines("msrl-azure")
    cases = [(f"2 x {n:,}", cheetah(320, (n, n)), azure) for n in (64, 256, 512, 1_024, 2_048)]
    return against("hidden layers", cases, make("HalfCheetah-v5"))


def agents() -> str:
    rows = []
    for count in (2, 4, 8, 16, 32, 64):
        algorithm = fragmenta.MAPPO(num_envs=2_048)
        env = SimpleSpread(agents=count)
        rates = [rate(algorithm, env, read_machines("msrl-azure"), policy)[0] for policy in ("fused", "environments")]
        rows.append((count, *map(rate_text, rates), f"{rates[1] / rates[0]:.2f}"))
    return table(("agents", "`fused`", "`environments`", "environments / fused"), rows)


def scaled(name: str, template: str, title: str, counts: Sequence[int], kind: Any, envs: int) -> str:
    """A table with efficiencies, and a chart."""
    algorithm = fragmenta.PPO(num_envs=envs, minibatches=4)
    curves = scale(algorithm, make("CartPole-v1"), read_machines(template), SCALED, counts, kind)
    draw_scaling(DOCS / "images" / f"scaling_{name}.png", title, curves)
    return scale_table(curves)


def scale_table(curves: Sequence[ScalingCurve]) -> str:
    counts = [point.devices for point in curves[0].points]
    rows = [
        (f"{n:,}", *(f"{rate_text(c.points[i].steps_per_second)} ({c.efficiency(c.points[i]):.0%})" for c in curves))
        for i, n in enumerate(counts)
    ]
    return table(("GPUs", *(f"`{curve.policy}`" for curve in curves)), rows)


def published() -> str:
    """Efficiencies that others published beside ours for about the same machines and speeds of environments."""
    v100 = read_machines("msrl-local")
    (dgx,) = read_machines("dgx-h100").nodes
    pcie, cards = Link(1e-5, 32e9), (MODELS["L40"],) * 8
    nodes = tuple(dataclasses.replace(dgx, name=f"l40-{i}", devices=cards, link=pcie) for i in (0, 1))
    rows = []
    for spread in (0.0, 0.3, 1.0):
        speed = f"steps that vary by {spread:.0%}" if spread else "steps of even speed"
        efficiency = weak_efficiency(v100, 128, cheetah(4, (512, 512)), Cost(1e-2, 1.0, spread))
        rows.append((f"DD-PPO, 128 V100; {speed}", "84% (107x)", f"{efficiency:.0%}"))
    isaac = fragmenta.PPO(num_envs=4_096, horizon=24, hidden=(256, 128, 64), epochs=5, minibatches=4)
    efficiency = weak_efficiency(Machines(nodes, v100.link), 16, isaac, Cost(4e-2))
    rows.append(("Isaac Lab, 16 L40", "97%", f"{efficiency:.0%}"))
    return table(("", "published", "simulated"), rows)


def weak_efficiency(machines: Machines, count: int, algorithm: Algorithm, step: Cost) -> float:
    """The speed per device on so many, as a share of that on one; `step` is one of all environments of a device."""
    rates = []
    for devices in (1, count):
        sized = dataclasses.replace(algorithm, num_envs=algorithm.num_envs * devices)
        rates.append(rate(sized, make("HalfCheetah-v5"), machines_with(machines, devices), MULTI, lambda _: step)[0])
    return rates[1] / rates[0] / count


POWERS = [2**i for i in range(13)]
STUDIES: dict[str, Callable[[], str]] = {
    "h200": h200,
    "environments": environments,
    "latency": latency,
    "network": network,
    "agents": agents,
    "azure": lambda: scaled("azure", "msrl-azure", "PPO on CartPole, P100, 10 Gbit/s", POWERS[:7], "weak", 2_048),
    "local": lambda: scaled("local", "msrl-local", "PPO on CartPole, V100, 100 Gbit/s", POWERS[:7], "weak", 2_048),
    "strong": lambda: scaled(
        "strong", "msrl-azure", "PPO on CartPole, 65,536 in total, P100", POWERS[:7], "strong", 65_536
    ),
    "pod": lambda: scaled("pod", "dgx-h100-pod", "PPO on CartPole, H100, 400 Gbit/s", POWERS, "weak", 2_048),
    "published": published,
}


def with_table(page: str, name: str, content: str) -> str:
    """The page with this table behind its heading's mark."""
    mark = f"<!-- simulated: {name} -->\n\n"
    before, here, rest = page.partition(mark)
    assert here, f"{PAGE.name} has no {mark.strip()}"
    after: Iterator[str] = itertools.dropwhile(lambda line: line[0] in "|\n", rest.splitlines(keepends=True))
    return before + mark + content + "\n" + "".join(after)


if __name__ == "__main__":
    for study in sys.argv[1:] or STUDIES:
        content = STUDIES[study]()
        print(f"{study}\n{content}", flush=True)
        PAGE.write_text(with_table(PAGE.read_text(), study, content))
