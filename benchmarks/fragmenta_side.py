"""Fragmenta's side of `environments.py`: environment steps per second of its PPO in steady state."""

import argparse

import fragmenta
from sides import BATCH, HORIZON, MINIBATCHES, NUM_ENVS, answer, steady_rate

CALIBRATION = 6  # iterations that show how many fit into the time, and fill the cache of compiled programs


def marks(env: str, epochs: int, iterations: int) -> list[tuple[float, int]]:
    algorithm = fragmenta.PPO(num_envs=NUM_ENVS, horizon=HORIZON, epochs=epochs, minibatches=MINIBATCHES)
    result = fragmenta.train(algorithm, env, total_steps=iterations * BATCH)
    return [(record["seconds"], record["steps"]) for record in result.metrics]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("env")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    fits = options.seconds * steady_rate(marks(options.env, options.epochs, CALIBRATION)) / BATCH
    answer(steady_rate(marks(options.env, options.epochs, max(8, round(fits)))))


if __name__ == "__main__":
    main()
