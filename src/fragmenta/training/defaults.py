"""What a run does about placement when nobody says."""

from fragmenta.algorithms import Algorithm
from fragmenta.envs import Environment, HostEnvironment
from fragmenta.policies import Policy
from fragmenta_host.pool import cores

WORTH_OVERLAPPING = 300e-6
"""Seconds that one step of all environments on the host must take before acting meanwhile gains anything."""
SPARE_CORES = 4
"""With fewer cores, environments keep all of them busy: there is nothing left to act with meanwhile."""


def default_policy(env: Environment) -> str:
    """One compiled program for environments in JAX; on the host, actors next to a learner."""
    return "single_learner_coarse" if isinstance(env, HostEnvironment) else "fused"


def default_replicas(algorithm: Algorithm, env: Environment, policy: str | Policy, apart: bool) -> int:
    """One, or two where environments on the host take their time and cores are left: one half steps while the other
    half's actions are computed, so that neither waits. With processes of their own (`apart`), one for each core."""
    takes_turns = isinstance(policy, str) and policy.startswith("single_learner")
    if not isinstance(env, HostEnvironment) or not takes_turns:
        return 1
    if apart:
        return max(count for count in range(1, cores() + 1) if algorithm.num_envs % count == 0)
    if algorithm.num_envs % 2 or cores() < SPARE_CORES:
        return 1
    # Packages that step many environments at once do not say how long one takes; they are chosen for large numbers.
    slow = env.pool.spec.is_vector or algorithm.num_envs * env.pool.step_seconds > WORTH_OVERLAPPING
    return 2 if slow else 1
