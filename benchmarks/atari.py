"""PPO with the small CNN on an Atari game through ale-py: steps per second, and the learning curve.

    python benchmarks/atari.py pong --num-envs 128 --total-steps 8000000 --minutes 10

Prints a line every few seconds and stops after --minutes; --out saves the records as JSON.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import jax

import fragmenta
from fragmenta.coordinator.plan import project
from fragmenta.engines import LocalEngine
from fragmenta.engines.hardware import keep_compiled_programs, local_cluster
from fragmenta.runs.episode_statistics import RecentEpisodes


def algorithm(num_envs: int, total_steps: int) -> fragmenta.PPO:
    """Close to the usual hyper-parameters for Atari, with more minibatches because there are more environments."""
    return fragmenta.PPO(
        num_envs=num_envs,
        total_steps=total_steps,
        horizon=128,
        epochs=4,
        minibatches=8,
        learning_rate=5e-4,
        clip=0.1,
        clip_value=True,
        hidden=(),
    )


def play(game: str, num_envs: int, total_steps: int, minutes: float) -> list[dict[str, Any]]:
    keep_compiled_programs()
    ppo, env = algorithm(num_envs, total_steps), fragmenta.make(f"ale:{game}")
    ppo.validate(env)
    plan = project(fragmenta.trace(ppo, env), "single_learner_coarse", local_cluster(replicas=2))
    recent, records, last_shown = RecentEpisodes(), [], 0.0
    with env.opened(2):
        leaves = jax.tree.leaves(jax.jit(lambda key: ppo.init(env, key))(jax.random.key(0)))
        with LocalEngine(plan) as engine:
            engine.begin(leaves)
            started = time.monotonic()
            for report in engine.run(total_steps // ppo.steps_per_iteration):
                values = jax.device_get(report.metrics)
                metrics = {name: values[i] for i, name in enumerate(plan.graph.metric_names)}
                recent.add(int(metrics["finished_episodes"]), float(metrics["finished_returns"]))
                seconds, steps = time.monotonic() - started, (report.iteration + 1) * ppo.steps_per_iteration
                record = {"seconds": round(seconds, 2), "steps": steps, "return": recent.return_mean}
                records.append(record | {"entropy": float(metrics["entropy"]), "busy": report.busy})
                if seconds - last_shown > 10:
                    last_shown = seconds
                    busy = ", ".join(f"{name} {share:.0%}" for name, share in report.busy.items())
                    print(f"{seconds:6.0f} s  {steps:>11,} steps  {steps / seconds:>8,.0f} steps/s  return "
                          f"{recent.return_mean}  busy {busy}", flush=True)  # fmt: skip
                if seconds > 60 * minutes:
                    break
    return records


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("game", nargs="?", default="pong")
    parser.add_argument("--num-envs", type=int, default=32)
    parser.add_argument("--total-steps", type=int, default=8_000_000)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    records = play(options.game, options.num_envs, options.total_steps, options.minutes)
    skip = len(records) // 10
    late, early = records[-1], records[skip]
    rate = (late["steps"] - early["steps"]) / max(late["seconds"] - early["seconds"], 1e-9)
    print(f"{options.game}: {rate:,.0f} steps/s ({4 * rate:,.0f} frames/s) on {jax.default_backend()}, "
          f"return {records[min(skip, 5)]['return']} -> {late['return']} in {late['seconds']:.0f} s")  # fmt: skip
    if options.out:
        options.out.write_text(json.dumps(records))


if __name__ == "__main__":
    main()
