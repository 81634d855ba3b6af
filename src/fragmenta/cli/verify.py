"""`fragmenta verify`: check that a loop computes the same under distribution policies as in one program."""

import dataclasses

from fragmenta.checks.verify import Verification, comparisons, devices_for
from fragmenta.cli.arguments import EnvFlags, PolicyName, numbers_of, read
from fragmenta.engines.hardware import ensure_cpu_devices


@dataclasses.dataclass(frozen=True)
class ComparisonOptions:
    """What to compare with the plain program."""

    policy: tuple[PolicyName, ...] = ()
    """Distribution policies to verify. Default: all synchronous ones that can place the algorithm."""
    replicas: tuple[int, ...] = ()
    """Replicas of their replicated fragment. Default: 2 and 4, if they divide the environments."""
    shards: int = 0
    """Shards of the replay under the distribution policy replay. Default: as many as replicas."""
    learners: int = 1
    """Replicas of the learner under the distribution policy replay."""
    engine: str = "local"
    """What runs the fragments: local (threads in this process) or processes (a process per replica)."""
    iterations: int = 3
    """Training iterations to compare."""
    seed: int = 0
    """The seed of networks, actions and environments."""


@dataclasses.dataclass(frozen=True)
class VerifyOptions:
    """All flags of `fragmenta verify` but for the hyper-parameters, in the order of the help."""

    comparison: ComparisonOptions
    environment: EnvFlags


def run(arguments: list[str]) -> int:
    """Print a line per distribution policy and number of replicas; exit code 1 if one gives a different result."""
    # Before importing the user's module: it may create arrays, which fixes the number of devices.
    parts = (max(numbers_of(flag, arguments), default=count) for flag, count in (("--shards", 0), ("--learners", 1)))
    ensure_cpu_devices(devices_for(numbers_of("--replicas", arguments), *parts))
    algorithm, env, options = read("verify", VerifyOptions, arguments)
    comparison_options = options.comparison
    policies, replicas = comparison_options.policy or None, comparison_options.replicas or None
    iterations = comparison_options.iterations
    parts = comparison_options.shards, comparison_options.learners
    settings = comparison_options.engine, iterations, comparison_options.seed, options.environment, *parts
    compared = []
    for comparison in comparisons(algorithm, env, policies, replicas, *settings):
        if not compared:
            print(
                f"{type(algorithm).__name__} on {env}, {algorithm.num_envs} environments: every leaf of the state and "
                f"every metric against jax.jit(iterate), after each of {iterations} iterations"
            )
        compared.append(comparison)
        print(f"  {comparison.policy:<22} x{comparison.replicas}  {comparison}", flush=True)
    verification = Verification(tuple(compared))
    agree = sum(not result.refused and result.difference is None for result in compared)
    differ = sum(result.difference is not None for result in compared)
    refused = sum(bool(result.refused) for result in compared)
    counts = [f"{agree} equal", *([f"{differ} differ"] * bool(differ)), *([f"{refused} refused"] * bool(refused))]
    print(", ".join(counts))
    return 0 if verification.equal else 1
