"""Check an environment: observations match their space, the seed determines everything, how fast it steps."""

import dataclasses
import functools
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from fragmenta.algorithms import A2C, DQN, IMPALA, MAPPO, PPO, SAC, Algorithm
from fragmenta.coordinator.plan import project
from fragmenta.envs import Environment, Transition, World
from fragmenta.errors import ConfigError
from fragmenta.graph import Graph
from fragmenta.policies import POLICIES, Cluster
from fragmenta.rl import keys_by_index
from fragmenta.tracing.trace import trace
from fragmenta_core.bounds import Bounds, bounds_of, first_outside, outside
from fragmenta_core.faults import EnvironmentFaultError
from fragmenta_core.spaces import MASK, leaves, legal_ones, random_actions
from fragmenta_host import examine
from fragmenta_host.pool import Pool

STEPS = 200
"""Steps that the checks take in each environment."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of one check. `problem` is empty if the check passed; `detail` describes what was observed."""

    check: str
    detail: str
    problem: str = ""
    trace: str = ""
    """The traceback, if the environment's own code raised."""
    ends: bool = False
    """Whether the environment cannot be stepped, so that there is nothing more to check or to measure."""


@dataclasses.dataclass(frozen=True)
class _Rollout:
    """The trajectories of several environments, with time as the leading dimension."""

    first: World
    trajectory: Transition


def findings(env: Environment, num_envs: int) -> Iterator[Finding]:
    """Run all checks on an environment; a fault of the environment is the last finding."""
    if env.host_pool:
        complaints = examine.complaints(env.host_pool.spec, env.host_pool.options.timeout)
        yield Finding("its package's checker", "no complaints" if not complaints else "", "; ".join(complaints))
    try:
        yield from _played(env, num_envs)
    except EnvironmentFaultError as fault:
        yield Finding("steps", "", str(fault).removesuffix(fault.hint), fault.trace, ends=True)


def _played(env: Environment, num_envs: int) -> Iterator[Finding]:
    rollout = _play(env, num_envs, seed=0)
    yield _in_space(env, rollout)
    yield _episodes(rollout)
    repeated = _play(env, num_envs, seed=0)
    hint = "draw every random number from the generator that reset(seed=...) seeds"
    yield _equal("determinism", "the same seed and actions give the same steps", rollout, repeated, hint)
    halved = _play(env, num_envs, seed=0, parts=2)
    yield _equal(
        "independence", "environments do not influence each other", rollout, halved, "keep no state at module level"
    )
    other = _play(env, num_envs, seed=1)
    differs = any(_differs(a, b) for a, b in zip(_leaves(rollout), _leaves(other), strict=True))
    yield Finding("seeds", "a different seed gives different steps" if differs else "a different seed changes nothing")


def _play(env: Environment, num_envs: int, seed: int, parts: int = 1) -> _Rollout:
    """Play the same random actions every time, or the next legal ones, in environments with the given seed."""
    keys = keys_by_index(jax.random.key(seed), num_envs)
    actions = _random_actions(env, num_envs)
    trajectories, size = [], num_envs // parts
    with env.opened(parts):
        first = env.reset(keys)
        step = jax.jit(lambda world, action: env.step(world, action))
        for low in range(0, num_envs, size):  # one part after the other, not interleaved
            world = jax.tree.map(lambda x, low=low: x[low : low + size], first)
            rows = []
            for action in actions:
                world, transition = step(world, _legal(env, world.observation, action[low : low + size]))
                rows.append(transition)
            trajectories.append(jax.tree.map(lambda *x: np.stack(x), *rows))
    return _Rollout(first, jax.tree.map(lambda *x: np.concatenate(x, axis=1), *trajectories))


def _random_actions(env: Environment, num_envs: int) -> Any:
    team = () if env.team_size is None else (env.team_size,)
    return random_actions(env.action_space, (STEPS, num_envs, *team))


def _legal(env: Environment, observation: Any, actions: np.ndarray) -> np.ndarray:
    names = [name for name, _, _ in leaves(env.observation_space)]
    if MASK not in names:
        return actions
    mask = np.asarray(jax.tree.leaves(observation)[names.index(MASK)])
    return legal_ones(env.action_space, mask, actions)


def _in_space(env: Environment, rollout: _Rollout) -> Finding:
    views = rollout.trajectory.observation, rollout.trajectory.next_observation
    observations = [np.concatenate(pair) for pair in zip(*map(jax.tree.leaves, views), strict=True)]
    problems = []
    team = () if env.team_size is None else (env.team_size,)
    parts = zip(observations, leaves(env.observation_space), _bounds(env), strict=True)
    for array, (name, shape, dtype), bounds in parts:
        title = name or "observation"
        if array.shape[2:] != (*team, *shape) or array.dtype != dtype:
            actual = f"{array.dtype}{list(array.shape[2:])}"
            problems.append(f"{title} is {actual}, but its space says {dtype}{list(shape)}")
            continue
        if np.issubdtype(array.dtype, np.floating) and np.isnan(array).any():
            problems.append(f"{title} contains NaN")
        share = float(np.mean(outside(array, bounds, dtype)))
        if share:
            example = first_outside(title, array, bounds, dtype, leading=2 + len(team))
            problems.append(f"returned {example}; {share:.1%} of the values of {title} are outside of its space")
    return Finding("observations", f"match the space in {STEPS} steps", "; ".join(problems))


def _bounds(env: Environment) -> list[Bounds]:
    if env.host_pool:
        return env.host_pool.description.observation_bounds
    return [part if env.team_size is None else part.with_zero() for part in bounds_of(env.observation_space)]


def _episodes(rollout: _Rollout) -> Finding:
    terminated, truncated = rollout.trajectory.terminated.sum(), rollout.trajectory.truncated.sum()
    steps = rollout.trajectory.terminated.size
    return Finding("episodes", f"{terminated:,} terminated and {truncated:,} truncated in {steps:,} steps")


def _leaves(rollout: _Rollout) -> list[Any]:
    trajectory = rollout.trajectory._replace(action=())
    return [*jax.tree.leaves(rollout.first.observation), *jax.tree.leaves(trajectory)]


def _differs(a: Any, b: Any) -> bool:
    return not np.array_equal(np.asarray(a), np.asarray(b), equal_nan=np.issubdtype(np.asarray(a).dtype, np.floating))


def _equal(check: str, detail: str, one: _Rollout, other: _Rollout, hint: str) -> Finding:
    for a, b in zip(_leaves(one), _leaves(other), strict=True):
        if _differs(a, b):
            first = len(a) != STEPS  # observations from reset have one row per environment, the others one per step
            step = 0 if first else int(np.argwhere(np.asarray(a != b).reshape(len(a), -1).any(axis=1))[0][0])
            return Finding(check, "", f"violated from step {step} on: {hint}")
    return Finding(check, detail)


def rates(env: Environment, num_envs: int, seconds: float = 1.0) -> Iterator[tuple[str, float]]:
    """Steps per second with random actions: for each mode of stepping on the host, or as one compiled program."""
    if not env.host_pool:
        world, actions = env.reset(keys_by_index(jax.random.key(0), num_envs)), _random_actions(env, num_envs)
        play = jax.jit(lambda world: jax.lax.scan(lambda w, a: (env.step(w, a)[0], None), world, actions)[0])
        world = jax.block_until_ready(play(world))
        started, done = time.perf_counter(), 0
        while time.perf_counter() - started < seconds:
            world, done = jax.block_until_ready(play(world)), done + 1
        yield "one compiled program", done * STEPS * num_envs / (time.perf_counter() - started)
        return
    actions = _random_actions(env, num_envs)
    modes = ("vector",) if env.host_pool.spec.is_vector else ("serial", "threads", "processes")
    for mode in modes:
        options = dataclasses.replace(env.host_pool.options, mode="auto" if mode == "vector" else mode)
        pool = Pool(env.host_pool.spec, options)
        try:
            observation = pool.reset(np.arange(num_envs))[0]
            started, done = time.perf_counter(), 0
            while time.perf_counter() - started < seconds:
                observation = pool.step(0, _legal(env, observation, actions[done % STEPS])).observation
                done += 1
            yield mode, done * num_envs / (time.perf_counter() - started)
        finally:
            pool.close()


def hosts(env: Environment, num_envs: int) -> Iterator[tuple[str, str]]:
    """Every distribution policy with the reason why it cannot host the environment; empty if it can."""
    cluster = Cluster(("device:0", "device:1", "device:2"), 2)

    @functools.cache
    def graph(algorithm: type[Algorithm]) -> Graph:
        example = algorithm(num_envs=num_envs)
        example.validate(env)
        return trace(example, env)

    def refusal(policy: str, algorithm: type[Algorithm]) -> str:
        try:
            project(graph(algorithm), policy, cluster, merge=False)
        except ConfigError as error:
            return str(error)
        return ""

    # Some distribution policies refuse some algorithms, whatever the environment.
    algorithms = (PPO, IMPALA, A2C, DQN, SAC) if env.team_size is None else (MAPPO,)
    for name in POLICIES:
        refusals = [refusal(name, algorithm) for algorithm in algorithms]
        yield name, "" if "" in refusals else refusals[0]
