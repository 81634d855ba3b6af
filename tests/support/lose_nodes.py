"""Three Ray nodes on this machine, two of which die one after the other; run as a separate process."""

from ray.cluster_utils import Cluster
from test_launchers import JOB, SERVE, TOKEN, Coordinator, eventually, has_ended

from fragmenta.engines.ray import RayLauncher
from fragmenta.engines.ray_access import slots
from ray_nodes import QUICK, STORE


def main() -> None:
    head = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": STORE, "_system_config": QUICK}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    workers = {node.node_id: node for node in [cluster.add_node(num_cpus=1, object_store_memory=STORE) for _ in "ab"]}
    assert sorted(slot.cpus for slot in slots(cluster.address)) == [1, 1, 2]
    launcher = RayLauncher([{"CPU": 1}] * 3, cluster.address, "SPREAD", serve=SERVE, placing_seconds=10)
    coordinator = Coordinator(launcher)
    coordinator.start(0, 1, 2)
    places = {index: launcher.place(index) for index in range(3)}
    assert len({place.node for place in places.values()}) == 3
    first, second = (index for index, place in places.items() if place.node in workers)
    lose(coordinator, first, workers[places[first].node])
    coordinator.start(first)
    assert launcher.place(first).node != places[first].node
    lose(coordinator, second, workers[places[second].node])
    launcher.start(second, JOB, coordinator.server.getsockname(), TOKEN)
    assert coordinator.end(second) == "could not be placed within 10 s: the cluster has no room for {'CPU': 1}"
    coordinator.close()
    cluster.shutdown()
    print("done")


def lose(coordinator: Coordinator, index: int, node) -> None:
    raylet = node.all_processes["raylet"][0].process
    raylet.kill()
    raylet.wait()  # a zombie looks alive to its children
    assert "lost with its node" in coordinator.end(index)
    eventually(lambda: has_ended(coordinator.pids[index]))


if __name__ == "__main__":
    main()
