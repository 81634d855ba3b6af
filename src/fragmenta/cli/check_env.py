"""`fragmenta check-env`: check an environment: is it sound, how fast is it, which distribution policies can host it."""

import dataclasses
import sys

from fragmenta.checks.conformance import findings, hosts, rates
from fragmenta.cli.arguments import EnvFlags, read_options
from fragmenta.envs import make
from fragmenta.errors import ConfigError
from fragmenta_core.bounds import silenced


@dataclasses.dataclass(frozen=True)
class CheckOptions(EnvFlags):
    """How to check the environment."""

    num_envs: int = 8
    """Environments to step in parallel."""


def run(arguments: list[str]) -> int:
    """Print the findings; exit code 1 if the environment is not sound or no distribution policy can host it."""
    with silenced():  # a finding counts what is outside of its bounds
        return _check(arguments)


def _check(arguments: list[str]) -> int:
    name, options = read_options("check-env", "ENVIRONMENT", CheckOptions, arguments)
    if options.num_envs < 2 or options.num_envs % 2:
        raise ConfigError(f"num_envs is {options.num_envs}: it must be even, because halves are compared")
    env = make(name, options)
    count = options.num_envs
    print(f"{name}: {env.where(count, 1)}")
    print(f"  observation  {env.observation_space}")
    print(f"  action       {env.action_space}")
    print(f"  agents       {env.num_agents}\n")
    sound = True
    for finding in findings(env, count):
        sound &= not finding.problem
        if finding.trace:
            print(finding.trace, end="", file=sys.stderr)
        print(f"  {'PROBLEM' if finding.problem else 'ok     '}  {finding.check}: {finding.problem or finding.detail}")
        if finding.ends:
            print(f"\n{name} is NOT sound: it cannot be stepped")
            return 1
    print(f"\n{count} environments, random actions:")
    for mode, rate in rates(env, count):
        print(f"  {mode.ljust(22)} {rate:>12,.0f} steps/s, {1e6 / rate:,.1f} us per step")
    print("\ndistribution policies, with two replicas:")
    hosted = False
    for policy, reason in hosts(env, count):
        hosted |= not reason
        print(f"  {policy.ljust(22)} {'yes' if not reason else 'no: ' + reason}")
    print(f"\n{name} is {'sound' if sound else 'NOT sound: see above'}")
    return 0 if sound and hosted else 1
