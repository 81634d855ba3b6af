"""Generated GPU kernels beside XLA: whether they compute the same, and how fast they are.

Run with `make bench WHAT=kernels` where JAX has an NVIDIA GPU. Arguments are numbers of environments. First the
trajectories and gradients of one iteration and their time, then environment steps per second of whole training, with
the times by which kernels were chosen.
"""

import itertools
import statistics
import sys
import tempfile
import time
import traceback

import jax
import jax.numpy as jnp

import fragmenta
from fragmenta.algorithms.ppo import Sample
from fragmenta.engines import LocalEngine
from fragmenta.engines.hardware import local_cluster
from fragmenta.engines.kernel_listing import kernel_lines
from fragmenta.worker.backends.kernel import launcher_for, obstacle, use_kernels, with_kernels
from fragmenta.worker.backends.xla import device_name, site

WINDOWS, STEPS = 2, 30_000_000
"""How often training is timed, and over about how many environment steps."""


def seconds(function, *arrays, repeats: int = 20) -> float:
    """The time of a call of a compiled function, of several in a row."""
    jax.block_until_ready(function(*arrays))
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        for _ in range(repeats):
            results = function(*arrays)
        jax.block_until_ready(results)
        times.append((time.perf_counter() - begin) / repeats)
    return min(times)


def rollout_of(algorithm, env):
    """The rollout of one iteration, as a function of the raw leaves of the state."""
    state = jax.jit(lambda key: algorithm.init(env, key))(jax.random.key(0))
    leaves, structure = jax.tree.flatten(state)
    keys = [jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in leaves]
    raw = [jax.random.key_data(x) if key else x for x, key in zip(leaves, keys, strict=True)]

    def rollout(*arrays):
        wrapped = [jax.random.wrap_key_data(x) if key else x for x, key in zip(arrays, keys, strict=True)]
        state = jax.tree.unflatten(structure, wrapped)
        _, trajectory, log_prob = algorithm.experience(env, state, state.keys)
        return tuple(jax.tree.leaves((trajectory, log_prob)))

    return rollout, raw, state


def gradient_of(algorithm, env, state):
    """The gradient on one minibatch, as a function of leaves."""
    rows = (algorithm.horizon // 4, algorithm.num_envs)
    keys = iter(jax.random.split(jax.random.key(1), 8))
    observation = jax.random.normal(next(keys), (*rows, *env.observation_space.shape))
    discrete = not hasattr(env.action_space, "low")
    action = (
        jax.random.randint(next(keys), rows, 0, 2)
        if discrete
        else jax.random.normal(next(keys), (*rows, *env.action_space.shape))
    )
    normal = [jax.random.normal(next(keys), rows) for _ in range(3)]
    batch = Sample(observation, action, -jnp.abs(normal[0]), normal[1], normal[2])
    leaves, structure = jax.tree.flatten((state.learner.params, batch))

    def gradient(*leaves):
        params, batch = jax.tree.unflatten(structure, leaves)
        return tuple(jax.tree.leaves(algorithm.gradient(env, params, batch)))

    return gradient, leaves


def compare(name: str, num_envs: int, compute: str, launcher) -> None:
    """Trajectories, gradients and their times."""
    env = fragmenta.make(name)
    algorithm = fragmenta.PPO(num_envs=num_envs, minibatches=4, compute=compute, total_steps=10**9)
    rollout, arrays, state = rollout_of(algorithm, env)
    begin = time.perf_counter()
    mine = with_kernels(rollout, arrays, launcher)
    ours, theirs = jax.jit(mine.function), jax.jit(rollout)
    got = ours(*arrays)
    jax.block_until_ready(got)
    compiled = time.perf_counter() - begin
    want = theirs(*arrays)
    same = [
        jnp.all(jnp.isclose(a.astype(float), b.astype(float), 1e-2, 1e-2).reshape(a.shape[0], num_envs, -1), (0, 2))
        for a, b in zip(got, want, strict=True)
    ]
    share = [round(float(jnp.mean(s)), 4) for s in same]
    print(f"{name} {num_envs} {compute}: kernels {[k.name for k in mine.report.kernels]} {mine.report.reasons}")
    print(f"  rollout: environments with equal values, per leaf {share}; compiled in {compiled:.1f} s")
    print(f"  rollout {1e3 * seconds(ours, *arrays):.3f} ms, XLA {1e3 * seconds(theirs, *arrays):.3f} ms", flush=True)
    gradient, leaves = gradient_of(algorithm, env, state)
    mine = with_kernels(gradient, leaves, launcher)
    ours, theirs = jax.jit(mine.function), jax.jit(gradient)
    with jax.default_matmul_precision("highest"):
        exact = jax.jit(lambda *a: gradient(*a))(*leaves)

    def error(results):
        return max(
            float(jnp.max(jnp.abs(a - b)) / (jnp.max(jnp.abs(b)) + 1e-12)) for a, b in zip(results, exact, strict=True)
        )

    got = ours(*leaves)
    again = ours(*leaves)
    print(
        f"  gradient: kernels {[k.name for k in mine.report.kernels]} {mine.report.reasons}; largest error "
        f"{error(got):.1e}, XLA {error(theirs(*leaves)):.1e}; the same bits "
        f"{all(bool(jnp.array_equal(a, b)) for a, b in zip(got, again, strict=True))}"
    )
    print(f"  gradient {1e6 * seconds(ours, *leaves):.0f} us, XLA {1e6 * seconds(theirs, *leaves):.0f} us", flush=True)


def training(name: str, num_envs: int, compute: str, on: bool) -> tuple[float, float]:
    """Environment steps per second, and seconds to compile."""
    use_kernels(on)
    jax.clear_caches()
    window = max(4, STEPS // (128 * num_envs))
    iterations = window * (WINDOWS + 1)
    algorithm = fragmenta.PPO(
        num_envs=num_envs, minibatches=4, compute=compute, total_steps=num_envs * 128 * iterations
    )
    env = fragmenta.make(name)
    plan = fragmenta.project(fragmenta.trace(algorithm, env), "fused", local_cluster())
    begin = time.perf_counter()
    lines = kernel_lines(plan) if on else []
    measured = time.perf_counter() - begin
    state = jax.tree.leaves(jax.jit(lambda key: algorithm.init(env, key))(jax.random.key(0)))
    begin = time.perf_counter()
    with LocalEngine(plan) as engine:
        compiled = time.perf_counter() - begin
        engine.begin(state)
        windows = []
        for _ in range(WINDOWS + 1):
            begin = time.perf_counter()
            for report in engine.run(window):
                jax.block_until_ready(report.metrics)
            windows.append(time.perf_counter() - begin)
    rate = window * algorithm.steps_per_iteration / statistics.median(windows[1:])
    if on:
        print("\n".join([*lines, f"  found in {measured:.1f} s"]))
    return rate, compiled


def main() -> None:
    device = jax.devices()[0]
    print(f"jax {jax.__version__} on {device.device_kind}; {obstacle(device) or 'kernels'}", flush=True)
    use_kernels(True)
    launcher = launcher_for(site((device_name(device),)))
    if launcher is None:
        sys.exit(1)
    sizes = [int(n) for n in sys.argv[1:]] or [16_384, 65_536, 2_048]
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_compilation_cache_dir", folder)  # so that kernels are measured anew, and once
        attempt(compare, "CartPole-v1", sizes[0], "float32", launcher)
        for compute, on, num_envs in itertools.product(("float32", "bfloat16"), (True, False), sizes):
            attempt(training_line, num_envs, compute, on)
        attempt(compare, "CartPole-v1", sizes[0], "bfloat16", launcher)
        for name in ("Pendulum-v1", "Acrobot-v1"):
            attempt(compare, name, sizes[0], "float32", launcher)


def training_line(num_envs: int, compute: str, on: bool) -> None:
    """Whole training with or without kernels."""
    rate, compiled = training("CartPole-v1", num_envs, compute, on)
    how = "kernels" if on else "XLA"
    print(
        f"training {num_envs:>6} {compute} {how}: {rate / 1e6:.1f} M steps/s; compiled in {compiled:.1f} s", flush=True
    )


def attempt(function, *arguments) -> None:
    """One part of the benchmark; the others go on if it fails."""
    try:
        function(*arguments)
    except Exception:
        traceback.print_exc(limit=-6)


if __name__ == "__main__":
    main()
