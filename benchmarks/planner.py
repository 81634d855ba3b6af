"""Predicted against measured speed on a grid of configurations, and whether the planner chooses the fastest.

Each configuration runs in a process of its own: it is predicted as `fragmenta plan` does, with nothing known before,
then the promising candidates are trained for a few seconds each, in turns. A third of the grid is kept apart: nothing
was tuned on it.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from planner_grids import GRIDS, is_apart
from planner_report import draw, report, summary, table

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
TRAIN_SECONDS, SEARCH_SECONDS, MEASURED = 1.5, 15.0, 2
"""How long a candidate is trained at a time, how long candidates are measured for their prediction, and how many are
trained: so many with the best predictions, and the one that would run without a planner."""
STEPS = 10**9
"""Of training, which is ended after some time: with one number, what is compiled is the same."""
ROUNDS, DIFFERENT = 2, 0.05
"""How often a candidate is trained; once more if these differ by more, since other machines share this one's cores."""


def one(grid: str, number: int) -> dict[str, Any]:
    """Predict a configuration, and train its promising candidates."""
    import jax

    if grid == "cpu":
        from fragmenta.engines.hardware import use_cpu_devices
        from fragmenta_host.options import cores

        use_cpu_devices(cores())
    elif jax.default_backend() == "cpu":
        raise SystemExit("the grid of a GPU needs one: JAX sees none")
    from fragmenta.algorithms.named import algorithm_from
    from fragmenta.checks.trial import measured_rate
    from fragmenta.engines.hardware import local_cluster
    from fragmenta.envs import EnvOptions, make
    from fragmenta.planner.auto import SYNCHRONOUS
    from fragmenta.planner.candidates import Space, candidates, engines_here
    from fragmenta.planner.predicting import predictor
    from fragmenta.planner.profile import Profile
    from fragmenta.planner.search import CLEARLY, search
    from fragmenta.tracing.trace import trace

    name, env_name, hyper_parameters = GRIDS[grid][number]
    env = make(env_name)
    algorithm = algorithm_from(name, hyper_parameters | {"total_steps": STEPS})
    began = time.monotonic()
    graph = trace(algorithm, env)
    predict = predictor(algorithm, env, graph, Profile())
    found = candidates(algorithm, env, graph, Space(SYNCHRONOUS, engines_here(env, None, local_cluster())))
    options = [option for option in found if option.keeps_result]
    predictions = search(predict, options, SEARCH_SECONDS)
    known = {id(p.candidate): p for p in predictions if not p.is_estimate}
    fastest = max(p.steps_per_second for p in known.values())
    simplest_first = (known[id(option)] for option in options if id(option) in known)
    chosen = next(p for p in simplest_first if CLEARLY * p.steps_per_second >= fastest)
    seconds = time.monotonic() - began
    default = next(p for p in predictions if p.candidate is options[0])
    trained = list({id(p): p for p in (chosen, *predictions[:MEASURED], default)}.values())
    rates: list[list[float]] = [[] for _ in trained]
    for turn in range(ROUNDS + 1):
        for prediction, its_rates in zip(trained, rates, strict=True):
            if turn < ROUNDS or max(its_rates) > (1 + DIFFERENT) * min(its_rates):
                its_rates.append(measured_rate(algorithm, env_name, EnvOptions(), prediction, TRAIN_SECONDS))
    rows = [
        {
            "what": prediction.candidate.description,
            "predicted": prediction.steps_per_second,
            "measured": statistics.median(its_rates),
            "estimate": prediction.is_estimate,
        }
        for prediction, its_rates in zip(trained, rates, strict=True)
    ]
    return {"number": number, "chosen": chosen.candidate.description, "seconds": seconds, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grid", choices=GRIDS, default="cpu")
    parser.add_argument("--part", choices=("tuned", "apart", "all"), default="all")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of configurations")
    parser.add_argument("--out", type=Path, help="where results are added; build/planner_GRID.json")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--report", action="store_true", help="only print what --out has")
    parser.add_argument("--docs", action="store_true", help="write the table and the chart of docs/planner.md")
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(one(options.grid, options.one)))
        return
    grid, out = GRIDS[options.grid], options.out or Path(f"build/planner_{options.grid}.json")
    results = {row["number"]: row for row in json.loads(out.read_text())} if out.exists() else {}
    wanted = [n for n in range(len(grid)) if options.part == "all" or is_apart(n) == (options.part == "apart")]
    for number in [] if options.report else options.only or wanted:
        began = time.monotonic()
        command = [sys.executable, __file__, "--grid", options.grid, "--one", str(number)]
        child = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if child.returncode:
            print(f"{number}: failed: {child.stderr.strip().splitlines()[-1:]}", flush=True)
            continue
        results[number] = json.loads(child.stdout.strip().splitlines()[-1])
        print(f"{number}: {summary([results[number]])} ({time.monotonic() - began:.0f} s)", flush=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(list(results.values())))
    chosen = [results[number] for number in sorted(results) if number in wanted]
    report(chosen, grid)
    if options.docs:
        name = f"planner_grid_{options.grid}"
        DOCS.joinpath(f"{name}.json").write_text(json.dumps(chosen))
        draw(chosen, DOCS / "images" / f"{name}.png")
        page, mark, end = DOCS / "planner.md", f"<!-- grid {options.grid} -->\n", "<!-- end -->"
        before, _, rest = page.read_text().partition(mark)
        page.write_text(f"{before}{mark}{table(chosen, grid)}\n{end}{rest.partition(end)[2]}")


if __name__ == "__main__":
    main()
