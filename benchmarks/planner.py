"""Predicted against measured speed on a grid of configurations, and whether the planner chooses the fastest.

Each configuration runs in a process of its own: it is predicted as `fragmenta plan` does, with nothing known before,
then the promising candidates are trained for a few seconds each. A third of the grid is kept apart: nothing was tuned
on it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
TRAIN_SECONDS, SEARCH_SECONDS, MEASURED = 3.0, 15.0, 2
"""How long a candidate is trained, how long candidates are measured for their prediction, and how many are trained:
so many with the best predictions, and the one that would run without a planner."""
COSTLY, COSTLY_HOST = "planner_envs:CostlyPendulum", "planner_envs:CostlyEnv"
Configuration = tuple[str, str, dict[str, Any]]
GRID: tuple[Configuration, ...] = (
    ("ppo", "CartPole-v1", {"num_envs": 8}),
    ("ppo", "CartPole-v1", {"num_envs": 64}),
    ("ppo", "CartPole-v1", {"num_envs": 2048}),
    ("ppo", "CartPole-v1", {"num_envs": 64, "hidden": (256, 256)}),
    ("ppo", "CartPole-v1", {"num_envs": 512, "hidden": (16, 16)}),
    ("ppo", "Pendulum-v1", {"num_envs": 64}),
    ("ppo", "Acrobot-v1", {"num_envs": 256}),
    ("ppo", "MountainCar-v0", {"num_envs": 32, "hidden": (512, 512)}),
    ("ppo", "gymnax:Breakout-MinAtar", {"num_envs": 64}),
    ("ppo", COSTLY, {"num_envs": 16}),
    ("ppo", COSTLY, {"num_envs": 128}),
    ("a2c", "CartPole-v1", {"num_envs": 8}),
    ("a2c", "CartPole-v1", {"num_envs": 256}),
    ("impala", "Acrobot-v1", {"num_envs": 64}),
    ("reinforce", "CartPole-v1", {"num_envs": 64}),
    ("ppo_gru", "CartPole-v1", {"num_envs": 32}),
    ("mappo", "jaxmarl:simple_spread", {"num_envs": 32}),
    ("pqn", "CartPole-v1", {"num_envs": 128}),
    ("dqn", "CartPole-v1", {}),
    ("dqn", "CartPole-v1", {"prioritized": True, "distribution": "c51"}),
    ("dqn", "Acrobot-v1", {"num_envs": 32, "batch_size": 256, "hidden": (256, 256)}),
    ("sac", "Pendulum-v1", {}),
    ("td3", "Pendulum-v1", {"num_envs": 16, "hidden": (64, 64)}),
    ("sac_discrete", "CartPole-v1", {}),
    ("vdn", "jaxmarl:simple_spread", {}),
    ("ppo", "gymnasium:CartPole-v1", {"num_envs": 8}),
    ("ppo", "gymnasium:CartPole-v1", {"num_envs": 32}),
    ("ppo", "gymnasium:CartPole-v1", {"num_envs": 128}),
    ("ppo", "gymnasium:CartPole-v1", {"num_envs": 32, "hidden": (256, 256)}),
    ("ppo", "gymnasium:HalfCheetah-v5", {"num_envs": 8}),
    ("ppo", "gymnasium:HalfCheetah-v5", {"num_envs": 64}),
    ("a2c", "gymnasium:Acrobot-v1", {"num_envs": 32}),
    ("impala", "gymnasium:CartPole-v1", {"num_envs": 16}),
    ("ppo_gru", "gymnasium:Pendulum-v1", {"num_envs": 16}),
    ("dqn", "gymnasium:CartPole-v1", {"num_envs": 8}),
    ("sac", "gymnasium:Pendulum-v1", {"num_envs": 8}),
    ("ppo", COSTLY_HOST, {"num_envs": 8}),
    ("ppo", COSTLY_HOST, {"num_envs": 64}),
    ("dqn", COSTLY_HOST, {"num_envs": 16}),
)


def is_apart(number: int) -> bool:
    """Whether a configuration is kept apart: every third."""
    return number % 3 == 2


def one(number: int) -> dict[str, Any]:
    """Predict a configuration, and train its promising candidates."""
    sys.path.insert(0, str(HERE))
    import jax

    if jax.config.jax_platforms in (None, "", "cpu") and not os.path.exists("/dev/nvidia0"):
        from fragmenta.engines.hardware import use_cpu_devices
        from fragmenta_host.options import cores

        use_cpu_devices(cores())
    from fragmenta.algorithms.named import algorithm_from
    from fragmenta.engines import EngineOptions, engine_named
    from fragmenta.engines.hardware import local_cluster
    from fragmenta.envs import make
    from fragmenta.planner.auto import SYNCHRONOUS
    from fragmenta.planner.candidates import Space, candidates
    from fragmenta.planner.predicting import predictor
    from fragmenta.planner.profile import Profile
    from fragmenta.planner.search import search
    from fragmenta.tracing.trace import trace

    name, env_name, hyper_parameters = GRID[number]
    env = make(env_name)
    algorithm = algorithm_from(name, dict(hyper_parameters))
    began = time.monotonic()
    graph = trace(algorithm, env)
    predict = predictor(algorithm, env, graph, Profile())
    engines = [("local", False, local_cluster())]
    if env.host_pool:
        engines.append(("processes", True, engine_named("processes").cluster(EngineOptions())))
    found = candidates(algorithm, env, graph, Space(SYNCHRONOUS, tuple(engines)))
    options = [option for option in found if option.keeps_result]
    predictions = search(predict, options, SEARCH_SECONDS)
    chosen = next(p for p in predictions if not p.is_estimate)
    seconds = time.monotonic() - began
    default = next(p for p in predictions if p.candidate is options[0])
    trained = {id(p): p for p in (chosen, *predictions[:MEASURED], default)}
    rows = []
    for prediction in trained.values():
        rate = measured(prediction, env_name, name, hyper_parameters)
        row = {"what": prediction.candidate.description, "predicted": prediction.steps_per_second, "measured": rate}
        rows.append(row | {"estimate": prediction.is_estimate})
    return {"number": number, "chosen": chosen.candidate.description, "seconds": seconds, "rows": rows}


def measured(prediction: Any, env: str, algorithm: str, hyper_parameters: dict[str, Any]) -> float:
    """Steps per second of a candidate in training, without its first third."""
    import fragmenta

    candidate = prediction.candidate
    iteration = max(1, round(prediction.steps_per_second * prediction.simulation.seconds))
    steps = max(9 * iteration, round(TRAIN_SECONDS * prediction.steps_per_second))
    result = fragmenta.train(
        algorithm,
        env,
        policy=candidate.policy,
        engine=candidate.engine,
        cluster=candidate.cluster,
        total_steps=steps,
        progress=False,
        **hyper_parameters,
    )
    records = list(result.metrics)
    first, last = records[len(records) // 3], records[-1]
    return (last["steps"] - first["steps"]) / (last["seconds"] - first["seconds"])


def summary(results: list[dict[str, Any]]) -> str:
    """The figures of a part of the grid, as text."""
    errors = [abs(row["predicted"] / row["measured"] - 1) for result in results for row in result["rows"]]
    shares = [share_of_best(result) for result in results]
    return (
        f"{len(results)} configurations, {len(errors)} candidates: error of the prediction "
        f"{statistics.median(errors):.1%} (median), {percentile(errors, 0.9):.1%} (90th percentile); the chosen one at "
        f"least 0.95 of the best measured in {sum(share >= 0.95 for share in shares) / len(shares):.0%}, lowest "
        f"{min(shares):.2f}"
    )


def share_of_best(result: dict[str, Any]) -> float:
    """The measured speed of the chosen candidate, as a share of the best one."""
    rates = {row["what"]: row["measured"] for row in result["rows"]}
    return rates[result["chosen"]] / max(rates.values())


def percentile(values: list[float], share: float) -> float:
    """The value below which that share of them is."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def report(results: list[dict[str, Any]]) -> None:
    """Print a table of all candidates, and the figures of both parts."""
    for result in results:
        name, env, settings = GRID[result["number"]]
        print(f"{result['number']:2} {name} {env} {settings}{' (kept apart)' if is_apart(result['number']) else ''}")
        for row in result["rows"]:
            mark = "*" if row["what"] == result["chosen"] else " "
            error = row["predicted"] / row["measured"] - 1
            estimate = " (estimate)" if row["estimate"] else ""
            print(
                f"   {mark} {row['what']:52} {row['predicted']:12,.0f} {row['measured']:12,.0f} {error:+5.0%}{estimate}"
            )
        print(f"     predicted in {result['seconds']:.1f} s; chosen {share_of_best(result):.2f} of the best")
    for title, part in (("tuned on", False), ("kept apart", True)):
        chosen = [result for result in results if is_apart(result["number"]) == part]
        if chosen:
            print(f"{title}: {summary(chosen)}")


def table(results: list[dict[str, Any]]) -> str:
    """The chosen candidate of every configuration, as Markdown."""
    lines = ["| algorithm | environment | chosen | predicted | measured | of the best |", "|---|---|---|---|---|---|"]
    for result in results:
        name, env, settings = GRID[result["number"]]
        row = next(row for row in result["rows"] if row["what"] == result["chosen"])
        flags = " ".join(f"`{key}={value}`" for key, value in settings.items())
        rates = f"{row['predicted']:,.0f} | {row['measured']:,.0f} | {share_of_best(result):.2f}"
        mark = " *" if is_apart(result["number"]) else ""
        lines.append(f"| `{name}` {flags}{mark} | `{env}` | {row['what']} | {rates} |")
    return "\n".join(lines)


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """A chart of predicted against measured speed."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 5), layout="constrained")
    for title, part, face in (("tuned on", False, "C0"), ("kept apart", True, "none")):
        rows = [row for result in results if is_apart(result["number"]) == part for row in result["rows"]]
        points = [row["measured"] for row in rows], [row["predicted"] for row in rows]
        axes.scatter(*points, s=22, edgecolors="C0", facecolors=face, label=f"{title}: {len(rows)} candidates")
    rates = [row["measured"] for result in results for row in result["rows"]]
    ends = [0.7 * min(rates), 1.4 * max(rates)]
    axes.plot(ends, ends, color="0.4", linewidth=1)
    low, high = ([factor * x for x in ends] for factor in (0.7, 1.3))
    axes.fill_between(ends, low, high, color="0.88", zorder=0, label="within 30%")
    axes.set(xscale="log", yscale="log", xlabel="measured steps/s", ylabel="predicted steps/s", xlim=ends, ylim=ends)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("tuned", "apart", "all"), default="all")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of configurations")
    parser.add_argument("--out", type=Path, default=Path("build/planner.json"), help="where results are added")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--report", action="store_true", help="only print what --out has")
    parser.add_argument("--docs", action="store_true", help="write the table and the chart of docs/planner.md")
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(one(options.one)))
        return
    results = {row["number"]: row for row in json.loads(options.out.read_text())} if options.out.exists() else {}
    wanted = [n for n in range(len(GRID)) if options.part == "all" or is_apart(n) == (options.part == "apart")]
    for number in [] if options.report else options.only or wanted:
        command = [sys.executable, __file__, "--one", str(number)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
        child = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
        if child.returncode:
            print(f"{number}: failed: {child.stderr.strip().splitlines()[-1:]}", flush=True)
            continue
        results[number] = json.loads(child.stdout.strip().splitlines()[-1])
        print(f"{number}: {summary([results[number]])}", flush=True)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(list(results.values())))
    chosen = [results[number] for number in sorted(results) if number in wanted]
    report(chosen)
    if options.docs:
        DOCS.joinpath("planner_grid.json").write_text(json.dumps(chosen))
        draw(chosen, DOCS / "images" / "planner_grid.png")
        page = DOCS / "planner.md"
        before, _, rest = page.read_text().partition("<!-- grid -->\n")
        page.write_text(f"{before}<!-- grid -->\n{table(chosen)}\n<!-- end -->{rest.partition('<!-- end -->')[2]}")


if __name__ == "__main__":
    main()
