"""`fragmenta verify`: does a loop compute under policies what it computes as one program."""

import dataclasses

from fragmenta.checks.verify import Verification, comparisons, devices_for
from fragmenta.cli.arguments import PolicyName, numbers_of, read
from fragmenta.engines.hardware import ensure_cpu_devices
from fragmenta.envs import EnvOptions


@dataclasses.dataclass(frozen=True)
class VerifyOptions(EnvOptions):
    """What to compare with the plain program."""

    policy: tuple[PolicyName, ...] = ()
    """Policies to verify. By default all synchronous ones that can place the algorithm."""
    replicas: tuple[int, ...] = ()
    """How often the policies' replicated fragment runs. By default 2 and 4, where they divide the environments."""
    engine: str = "local"
    """What runs the fragments: local (threads in this process) or processes (a process for each)."""
    iterations: int = 3
    """Training iterations to compare, one after the other."""
    seed: int = 0


def run(arguments: list[str]) -> int:
    """Print a line for every policy and number of replicas; exit code 1 if one gives another result."""
    # Before the user's module is imported: it may make arrays, which fixes the number of devices.
    ensure_cpu_devices(devices_for(numbers_of("--replicas", arguments)))
    algorithm, env, options = read("verify", VerifyOptions, arguments)
    how = options.engine, options.iterations, options.seed, options
    compared = []
    for found in comparisons(algorithm, env, options.policy or None, options.replicas or None, *how):
        if not compared:
            print(
                f"{type(algorithm).__name__} on {env}, {algorithm.num_envs} environments: every leaf of the state and "
                f"every metric against jax.jit(iterate), after each of {options.iterations} iterations"
            )
        compared.append(found)
        print(f"  {found.policy:<22} x{found.replicas}  {found}", flush=True)
    verification = Verification(tuple(compared))
    agree = sum(not one.refused and one.difference is None for one in compared)
    differ = sum(one.difference is not None for one in compared)
    refused = sum(bool(one.refused) for one in compared)
    counts = [f"{agree} equal", *([f"{differ} differ"] * bool(differ)), *([f"{refused} refused"] * bool(refused))]
    print(", ".join(counts))
    return 0 if verification.equal else 1
