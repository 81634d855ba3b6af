"""Ray nodes on this machine, with a token and on loopback, that notice a dead node in two seconds; for tests.

They are held by a process of their own (this file, run), because a process in which JAX runs must not fork.
"""

import os
import secrets
import subprocess
import sys
from typing import Any

STORE = 80 * 2**20
QUICK = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}
"""How Ray notices a dead node in two seconds instead of fifteen."""


class Nodes:
    """A head, which the processes of this machine connect to, and others that may be lost."""

    def __init__(self, count: int = 3, cpus: int = 4) -> None:
        # Ray reads these as it is imported; the same as for a Ray of our own, which other tests start.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        command = [sys.executable, __file__, str(count), str(cpus)]
        self._holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.address, self.head = self._answer()

    def add(self) -> None:
        """Start another node."""
        self._order("add")

    def lose(self, node: str) -> None:
        """Kill the raylet of a node other than the head."""
        self._order(f"lose {node}")

    def close(self) -> None:
        """End them all."""
        self._holder.communicate()

    def _order(self, what: str) -> None:
        assert self._holder.stdin
        self._holder.stdin.write(what + "\n")
        self._holder.stdin.flush()
        self._answer()

    def _answer(self) -> list[str]:
        assert self._holder.stdout
        while words := self._holder.stdout.readline():
            if words.startswith("nodes: "):
                return words.split()[1:]
        raise RuntimeError("the nodes ended")


def hold(count: int, cpus: int) -> None:
    """Start nodes, and obey until the orders end."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": STORE, "_system_config": QUICK}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    others: dict[str, Any] = {}

    def add() -> None:
        node = cluster.add_node(num_cpus=cpus, object_store_memory=STORE)
        others[node.node_id] = node

    for _ in range(count - 1):
        add()
    print("nodes:", cluster.address, cluster.head_node.node_id, flush=True)
    for order in sys.stdin:
        what, *which = order.split()
        if what == "add":
            add()
        else:
            raylet = others.pop(which[0]).all_processes["raylet"][0].process
            raylet.kill()
            raylet.wait()  # a process that nobody waited for looks alive to those that it started
        print("nodes: done", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    hold(*map(int, sys.argv[1:]))
