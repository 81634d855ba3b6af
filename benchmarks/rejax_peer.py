"""The peer's side of `cpu.py`: runs in a separate virtual environment, and answers each number of environments with
rejax's environment steps per second in steady state."""

import sys
import time

import jax
from rejax import PPO

HORIZON = 128


def trainer(num_envs: int, iterations: int):
    steps = num_envs * HORIZON * iterations
    algorithm = PPO.create(
        env="CartPole-v1",
        num_envs=num_envs,
        num_steps=HORIZON,
        num_epochs=4,
        num_minibatches=4,
        total_timesteps=steps,
        eval_freq=steps,
        skip_initial_evaluation=True,
        agent_kwargs={"hidden_layer_sizes": (64, 64), "activation": "tanh"},
    )
    compiled = jax.jit(algorithm.train)
    jax.block_until_ready(compiled(jax.random.PRNGKey(0)))
    return compiled


def seconds(compiled) -> float:
    begin = time.perf_counter()
    jax.block_until_ready(compiled(jax.random.PRNGKey(0)))
    return time.perf_counter() - begin


def main() -> None:
    # Two lengths: their difference is pure training time, without start-up and the final evaluation.
    ready = {}
    for line in sys.stdin:
        num_envs, short, long = map(int, line.split())
        if num_envs not in ready:
            ready[num_envs] = trainer(num_envs, short), trainer(num_envs, long)
        times = [seconds(compiled) for compiled in ready[num_envs]]
        print(num_envs * HORIZON * (long - short) / (times[1] - times[0]), flush=True)


if __name__ == "__main__":
    main()
