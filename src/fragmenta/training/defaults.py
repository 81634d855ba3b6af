"""Default distribution policy and default number of replicas."""

import math

from fragmenta.algorithms import Algorithm
from fragmenta.envs import Environment
from fragmenta.policies import WITH_ACTORS, Cluster, Policy, resolve
from fragmenta_host.options import cores

WORTH_OVERLAPPING = 300e-6
"""Seconds that one step of all host environments must take before overlapping it with acting pays off; about what
another process adds to acting on a GPU, where the programs of several processes take turns."""
SPARE_CORES = 4
"""With fewer cores, the environments keep all of them busy and none is left for acting meanwhile."""


def default_policy(env: Environment) -> str:
    """One compiled program for JAX environments; actors and a learner for environments on the host."""
    return "single_learner_coarse" if env.host_pool else "fused"


def default_replicas(algorithm: Algorithm, env: Environment, policy: str | Policy, cluster: Cluster) -> tuple[int, str]:
    """The number of replicas and why it is not one. In one process, two for slow environments on the host if cores are
    left: one half steps while the actions of the other half are computed."""
    if not env.host_pool or resolve(policy) not in WITH_ACTORS:
        return 1, ""
    count, step_seconds = algorithm.num_envs, env.host_pool.step_seconds
    if cluster.apart:
        return replicas_apart(step_seconds, cores(), count, cluster.devices[0].partition(":")[0])
    if count % 2 or cores() < SPARE_CORES:
        return 1, ""
    # Vectorised packages do not report the time of a single step; they are chosen for large numbers.
    slow = env.host_pool.spec.is_vector or count * step_seconds > WORTH_OVERLAPPING
    return (2, "2 replicas, of which one steps while the other acts") if slow else (1, "")


def replicas_apart(step_seconds: float, most: int, num_envs: int, device: str) -> tuple[int, str]:
    """The number of replicas that step `num_envs` environments in a process each on `most` cores, and why.

    On a CPU every replica acts on its own core, so there are as many as possible. On a GPU they take turns: with n of
    them a step takes all_seconds / n plus an overhead per replica, and the root minimises the sum. A step time of 0 is
    unknown: two replicas then let one step while the other acts.
    """
    if device == "cpu":
        count = _largest_divisor(num_envs, most)
        return count, f"{count} replicas, one per core" if count > 1 else ""
    all_seconds = num_envs * step_seconds
    best = round(math.sqrt(all_seconds / WORTH_OVERLAPPING)) if step_seconds else 2
    count = _largest_divisor(num_envs, max(1, min(most, best)))
    known = f"a step of all takes about {all_seconds * 1e3:,.2f} ms and " if step_seconds else ""
    replicas = f"{count} replica{'s' if count > 1 else ''}"
    return count, f"{replicas}, because {known}their processes take turns on the {device.upper()}"


def _largest_divisor(number: int, most: int) -> int:
    return max(count for count in range(1, most + 1) if number % count == 0)
