"""Steps per second of an environment alone on two cores, with random actions and without learning."""

import argparse
import itertools
import multiprocessing
import time
from collections.abc import Iterator

import numpy as np

from sides import NUM_ENVS, answer

PROCESSES = 2
DRAWN = 64  # rounds of actions drawn before the clock starts, so that only stepping is measured
WARM_UP = 1.0


def loop(name: str, seed: int, ready, seconds: float, counts, vector: bool) -> None:
    """Step a share of the environments; put the number of steps within the common time window."""
    rounds = vector_rounds(name, seed) if vector else single_rounds(name, seed)
    next(rounds)
    ready.wait()
    begin = time.monotonic() + WARM_UP  # the barrier releases both at once, so their windows are the same
    steps = 0
    for count in rounds:
        now = time.monotonic()
        if now < begin:
            continue
        if now > begin + seconds:
            break
        steps += count
    counts.put(steps / seconds)


def vector_rounds(name: str, seed: int) -> Iterator[int]:
    """Step Gymnasium's vector environment, which stacks observations into one array; yields the steps of each round."""
    import gymnasium

    count = NUM_ENVS // PROCESSES
    vector = gymnasium.vector.SyncVectorEnv(
        [lambda: gymnasium.make(name, disable_env_checker=True) for _ in range(count)]
    )
    vector.reset(seed=seed)
    vector.action_space.seed(seed)
    for actions in itertools.cycle([vector.action_space.sample() for _ in range(DRAWN)]):
        vector.step(actions)
        yield count


def single_rounds(name: str, seed: int) -> Iterator[int]:
    """Step one environment after another and discard the observations; yields the steps of each round."""
    import gymnasium

    envs = [gymnasium.make(name, disable_env_checker=True) for _ in range(NUM_ENVS // PROCESSES)]
    for i, env in enumerate(envs):
        env.reset(seed=seed + i)
        env.action_space.seed(seed + i)
    for actions in itertools.cycle([[env.action_space.sample() for env in envs] for _ in range(DRAWN)]):
        for env, action in zip(envs, actions, strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        yield len(envs)


def gymnasium_rate(name: str, seconds: float, vector: bool) -> float:
    context = multiprocessing.get_context("spawn")
    ready, counts = context.Barrier(PROCESSES), context.SimpleQueue()
    arguments = [(name, i * NUM_ENVS, ready, seconds, counts, vector) for i in range(PROCESSES)]
    processes = [context.Process(target=loop, args=one) for one in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return sum(counts.get() for _ in processes)


def envpool_rate(name: str, seconds: float, threads: int, batch: int, pinned: bool) -> float:
    import envpool

    affinity = 0 if pinned else -1
    pool = envpool.make_gymnasium(
        name, num_envs=NUM_ENVS, num_threads=threads, batch_size=batch, thread_affinity_offset=affinity
    )
    generator = np.random.default_rng(0)
    space = pool.action_space
    if hasattr(space, "n"):
        drawn = generator.integers(0, space.n, (DRAWN, batch), np.int32)
    else:
        drawn = generator.uniform(space.low, space.high, (DRAWN, batch, *space.shape)).astype(space.dtype)
    pool.async_reset()
    steps = 0
    begin = time.monotonic() + WARM_UP
    for actions in itertools.cycle(drawn):
        env_ids = pool.recv()[-1]["env_id"]
        pool.send(actions, env_ids)
        now = time.monotonic()
        if now < begin:
            continue
        if now > begin + seconds:
            break
        steps += len(env_ids)
    return steps / seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("env")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--vector", action="store_true", help="gymnasium's SyncVectorEnv in each process")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=NUM_ENVS)
    parser.add_argument("--pinned", action="store_true")
    options = parser.parse_args()
    package, _, name = options.env.partition(":")
    if package == "gymnasium":
        answer(gymnasium_rate(name, options.seconds, options.vector))
    else:
        answer(envpool_rate(name, options.seconds, options.threads, options.batch, options.pinned))


if __name__ == "__main__":
    main()
