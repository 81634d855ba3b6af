"""Default distribution policy and default number of replicas."""

from fragmenta.algorithms import Algorithm
from fragmenta.envs import Environment
from fragmenta.policies import Policy
from fragmenta_host.pool import cores

WORTH_OVERLAPPING = 300e-6
"""Seconds that one step of all host environments must take before overlapping it with acting pays off."""
SPARE_CORES = 4
"""With fewer cores, the environments keep all of them busy and none is left for acting meanwhile."""


def default_policy(env: Environment) -> str:
    """One compiled program for JAX environments; actors and a learner for environments on the host."""
    return "single_learner_coarse" if env.host_pool else "fused"


def default_replicas(algorithm: Algorithm, env: Environment, policy: str | Policy, apart: bool) -> int:
    """One, or two for slow environments on the host if cores are left: one half steps while the actions of the other
    half are computed. With a process per replica (`apart`), as many as the cores and `num_envs` allow."""
    takes_turns = isinstance(policy, str) and policy.startswith("single_learner")
    if not env.host_pool or not takes_turns:
        return 1
    if apart:
        return max(count for count in range(1, cores() + 1) if algorithm.num_envs % count == 0)
    if algorithm.num_envs % 2 or cores() < SPARE_CORES:
        return 1
    # Vectorised packages do not report the time of a single step; they are chosen for large numbers.
    slow = env.host_pool.spec.is_vector or algorithm.num_envs * env.host_pool.step_seconds > WORTH_OVERLAPPING
    return 2 if slow else 1
