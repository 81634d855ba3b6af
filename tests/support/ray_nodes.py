"""Ray nodes on this machine for tests, with a token and on loopback, that detect a dead node within two seconds.

A separate process (this file as a script) holds them, because a process that runs JAX must not fork.
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
"""Makes Ray detect a dead node in two seconds instead of fifteen."""


class Nodes:
    """A head node, which the processes of this machine connect to, and other nodes that may be lost."""

    def __init__(self, count: int = 3, cpus: int = 4) -> None:
        # Ray reads these on import; they are the same as for the Ray that other tests start.
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
        """End all nodes."""
        self._holder.communicate()

    def _order(self, order: str) -> None:
        assert self._holder.stdin
        self._holder.stdin.write(order + "\n")
        self._holder.stdin.flush()
        self._answer()

    def _answer(self) -> list[str]:
        assert self._holder.stdout
        while words := self._holder.stdout.readline():
            if words.startswith("nodes: "):
                return words.split()[1:]
        raise RuntimeError("the nodes ended")


def hold(count: int, cpus: int) -> None:
    """Start the nodes, and carry out orders from stdin until it ends."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": STORE, "_system_config": QUICK}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes: dict[str, Any] = {}

    def add() -> None:
        node = cluster.add_node(num_cpus=cpus, object_store_memory=STORE)
        nodes[node.node_id] = node

    for _ in range(count - 1):
        add()
    print("nodes:", cluster.address, cluster.head_node.node_id, flush=True)
    for order in sys.stdin:
        verb, *operands = order.split()
        if verb == "add":
            add()
        else:
            raylet = nodes.pop(operands[0]).all_processes["raylet"][0].process
            raylet.kill()
            raylet.wait()  # a zombie looks alive to its children
        print("nodes: done", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    hold(*map(int, sys.argv[1:]))
