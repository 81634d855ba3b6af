"""Fragmenta's side of `environments.py` and `cluster.py`: environment steps per second of its PPO in steady state."""

import argparse

import fragmenta
from fragmenta.engines import ENGINES, EngineOptions
from sides import BATCH, HORIZON, MINIBATCHES, NUM_ENVS, answer, steady_rate

CALIBRATION = 6  # iterations to estimate how many fit into the time, and to fill the compilation cache


def marks(env: str, epochs: int, iterations: int, engine: str, actors: int) -> list[tuple[float, int]]:
    algorithm = fragmenta.PPO(num_envs=NUM_ENVS, horizon=HORIZON, epochs=epochs, minibatches=MINIBATCHES)
    cluster = ENGINES[engine].cluster(EngineOptions(), actors)
    result = fragmenta.train(algorithm, env, total_steps=iterations * BATCH, engine=engine, cluster=cluster)
    return [(record["seconds"], record["steps"]) for record in result.metrics]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("env")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--engine", default="processes")
    parser.add_argument("--actors", type=int, default=0, help="by default as many as training takes by itself")
    options = parser.parse_args()
    setting = options.engine, options.actors
    fits = options.seconds * steady_rate(marks(options.env, options.epochs, CALIBRATION, *setting)) / BATCH
    answer(steady_rate(marks(options.env, options.epochs, max(8, round(fits)), *setting)))


if __name__ == "__main__":
    main()
