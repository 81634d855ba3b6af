"""`fragmenta policies`: what can be chosen, and what each is good for."""

import inspect

from rich.console import Console
from rich.table import Table

from fragmenta.errors import ConfigError
from fragmenta.policies import ALIASES, POLICIES, Cluster

LOOP = ("act", "step", "learn")
"""The stages of the usual loop, to show how a policy splits them."""


def run(arguments: list[str]) -> int:
    """Print every policy with its fragments."""
    if arguments and arguments[0] not in ("-h", "--help"):
        raise ConfigError(f"unknown argument '{arguments[0]}': 'fragmenta policies' takes none")
    table = Table(show_lines=True)
    for column in ("policy", "fragments of act, step, learn (R replicas)", "what it does"):
        table.add_column(column)
    for name, policy in POLICIES.items():
        fragments = [
            f"{fragment.name}: {', '.join(fragment.stages)}{' x R' if fragment.replicas > 1 else ''}"
            for fragment in policy(LOOP, Cluster(("device",), replicas=2))
        ]
        also = [alias for alias, target in ALIASES.items() if target == name]
        title = name + (f"\n(also {', '.join(also)})" if also else "")
        table.add_row(title, "\n".join(fragments), inspect.getdoc(policy) or "")
    Console().print(table)
    print("Your own: a function (stages, cluster) -> list of Fragment, named as --policy module:function")
    return 0
