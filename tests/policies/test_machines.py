"""Machines: names of devices, links between them, templates, and what is wrong with a file in one line."""

import dataclasses
from importlib import resources
from pathlib import Path

import cloudpickle
import pytest

from fragmenta.errors import ConfigError
from fragmenta.policies import Cluster, resolve
from fragmenta.policies.machine_files import TEMPLATES, read_machines
from fragmenta.policies.machines import CPU_CORE, MODELS, Device, Link, Machines, Node, cpu_devices

NEAR, FAR = Link(1e-5, 1e10), Link(1e-4, 1e9)
GPU = MODELS["T4"]
NODE = """
[[node]]
name = "worker"
cores = 24
memory_gb = 448
gpus = 4
gpu = "P100"
link = { latency_ms = 0.01, gb_per_s = 10 }
"""
LINK = "\n[link]\nlatency_ms = 0.2\ngbit_per_s = 10\n"


def node(name: str, *devices: Device) -> Node:
    return Node(name, 8, 32 * 10**9, devices, NEAR)


def read(tmp_path: Path, text: str) -> Machines:
    path = tmp_path / "a.toml"
    path.write_text(text)
    return read_machines(path)


def mistake(tmp_path: Path, text: str) -> str:
    """The error for a file, without the words that name the file."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    message = str(caught.value).replace(str(tmp_path), "")
    assert "\n" not in message
    assert "machines '/a.toml'" in message
    return message.replace(" in machines '/a.toml'", "")


def test_a_link_takes_its_latency_and_the_time_of_the_bytes() -> None:
    assert FAR.seconds(0) == 1e-4
    assert FAR.seconds(10**9) == pytest.approx(1.0001)


def test_devices_are_numbered_per_kind_over_all_nodes() -> None:
    machines = Machines((node("a", GPU, GPU), node("b", *cpu_devices(2, 8, 32)), node("c", GPU)), FAR)
    assert machines.devices == ("gpu:0", "gpu:1", "cpu:0", "cpu:1", "gpu:2")
    assert [machines.node_of(device).name for device in machines.devices] == ["a", "a", "b", "b", "c"]
    assert machines.device("gpu:2") is GPU


def test_links_are_those_of_a_node_or_those_between_nodes() -> None:
    alike = node("a", GPU, GPU)
    machines = Machines((alike, alike), FAR)
    assert machines.between("gpu:0", "gpu:1") == machines.between("gpu:3", "gpu:2") == NEAR
    assert machines.between("gpu:1", "gpu:2") == machines.between("gpu:2", "gpu:1") == FAR


def test_the_cpu_beside_an_accelerator_has_its_number() -> None:
    machines = Machines((node("a", GPU, GPU), node("b", GPU)), FAR)
    beside = Cluster(machines.devices, apart=True, machines=machines).in_host_memory(machines.devices)
    assert beside == ("cpu:0", "cpu:1", "cpu:2")
    assert [machines.node_of(device).name for device in beside] == ["a", "a", "b"]
    assert machines.device("cpu:2") == machines.nodes[1].cpu
    assert machines.device("cpu:2").flops == 8 * CPU_CORE.flops
    assert machines.between("cpu:0", "gpu:1") == NEAR
    mixed = Machines((*machines.nodes, node("c", *cpu_devices(1, 8, 32))), FAR)
    assert mixed.node_of("cpu:0").name == "c"


def test_described_devices_are_placed_as_others() -> None:
    machines = read_machines("msrl-local")
    described = Cluster(machines.devices, replicas=3, machines=machines)
    plain = dataclasses.replace(described, machines=None)
    stages = ("act", "step", "learn")
    assert resolve("single_learner_coarse")(stages, described) == resolve("single_learner_coarse")(stages, plain)
    assert cloudpickle.loads(cloudpickle.dumps(described)) == described != plain
    assert hash(described) != hash(plain)


def test_an_unknown_device_is_one_line() -> None:
    machines = Machines((node("a", GPU, GPU), node("b", *cpu_devices(1, 8, 32))), FAR)
    with pytest.raises(ConfigError, match=r"^unknown device 'cpu:1': the machines have gpu:0 to gpu:1, cpu:0$"):
        machines.between("gpu:0", "cpu:1")


def test_devices_of_a_cpu_share_its_cores_and_memory() -> None:
    first, *others = cpu_devices(4, 2, 1000)
    assert (first.memory, first.flops, first.bandwidth) == (250, CPU_CORE.flops / 2, CPU_CORE.bandwidth / 2)
    assert others == [first] * 3


def test_every_device_of_a_large_cluster_is_looked_up_in_one_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    machines = Machines(tuple(node(f"node-{i}", *(GPU,) * 8) for i in range(512)), FAR)
    assert len(machines.devices) == 4096
    monkeypatch.setattr("fragmenta.policies.machines.Counter", None)  # which a second listing would need
    for i, device in enumerate(machines.devices):
        assert machines.node_of(device).name == f"node-{i // 8}"
        assert machines.between("gpu:0", device) == (NEAR if i < 8 else FAR)
        assert machines.node_of(f"cpu:{i}").name == f"node-{i // 8}"


@pytest.mark.parametrize(
    ("name", "nodes", "devices", "cores", "model"),
    [
        ("laptop", 1, 8, 8, "1 x CPU core"),
        ("gpu-workstation", 1, 1, 16, "RTX 4090"),
        ("dgx-h100", 1, 8, 112, "H100"),
        ("dgx-h100-pod", 32, 256, 32 * 112, "H100"),
        ("msrl-azure", 16, 64, 16 * 24, "P100"),
        ("msrl-local", 4, 32, 4 * 96, "V100"),
    ],
)
def test_templates_have_the_published_counts(name: str, nodes: int, devices: int, cores: int, model: str) -> None:
    machines = read_machines(name)
    assert (len(machines.nodes), len(machines.devices)) == (nodes, devices)
    assert sum(node.cores for node in machines.nodes) == cores
    assert {machines.device(device).model for device in machines.devices} == {model}


def test_templates_are_those_that_are_listed() -> None:
    folder = resources.files("fragmenta.policies").joinpath("templates")
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{name}.toml" for name in TEMPLATES)
    published = read_machines("msrl-azure")
    assert published.link.bandwidth == 10e9 / 8
    assert {node.memory for node in published.nodes} == {448 * 10**9}
    assert {node.memory for node in read_machines("msrl-local").nodes} == {512 * 10**9}


def test_a_file_describes_nodes_of_several_kinds(tmp_path: Path) -> None:
    own = 'gpu = { model = "A100 40 GB", memory_gb = 40, tflops = 19.5, bandwidth_gb_per_s = 1555 }'
    both = NODE.replace("gpus", "count = 2\ncpu_devices = 1\ngpus") + NODE.replace('"worker"', '"other"')
    machines = read(tmp_path, LINK + both.replace('gpu = "P100"', own, 1))
    assert [node.name for node in machines.nodes] == ["worker-0", "worker-1", "other"]
    assert machines.devices[:6] == ("cpu:0", "gpu:0", "gpu:1", "gpu:2", "gpu:3", "cpu:1")
    assert machines.device("gpu:0") == Device("gpu", "A100 40 GB", 40 * 10**9, 19.5e12, 1.555e12)
    assert machines.device("gpu:8") == MODELS["P100"]
    assert machines.device("cpu:1").memory == 448 * 10**9
    assert machines.between("gpu:0", "gpu:4") == Link(2e-4, 1.25e9)
    assert machines.between("gpu:0", "gpu:3") == Link(1e-5, 1e10)


def test_a_single_node_needs_no_link_between_nodes(tmp_path: Path) -> None:
    tpu = "tpu = { memory_gb = 16, tflops = 49, bandwidth_gb_per_s = 819 }"
    machines = read(tmp_path, NODE.replace("gpus", "tpus").replace('gpu = "P100"', tpu))
    assert machines.devices == ("tpu:0", "tpu:1", "tpu:2", "tpu:3")
    assert machines.link == machines.nodes[0].link


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "node is missing: expected a table [[node]] for every kind of node"),
        ("node = 3", "node is 3: expected a table [[node]]"),
        ("[node]\ncores = 8", 'node is {"cores": 8}: expected a table [[node]]'),
        ("[[nodes]]", "unknown key 'nodes': did you mean 'node'? choose from link, node"),
        ("[[node]]", "name of node 1 is missing: expected a name in quotes"),
        ("[[node]", "machines '/a.toml' are not TOML: "),
        (f"x = {'[' * 10**5}", "machines '/a.toml' are not TOML: "),
        (f"x = {'9' * 5000}", "machines '/a.toml' are not TOML: "),
        (NODE + NODE + LINK, "machines '/a.toml' have two nodes of name 'worker'"),
        (NODE + NODE.replace("worker", "b"), "link is missing: expected a table [link] with latency_ms and gbit_per_s"),
        (LINK.replace("10", "inf") + NODE, "gbit_per_s of link is Infinity: expected a number"),
    ],
)
def test_mistakes_in_a_file_get_one_line(text: str, message: str, tmp_path: Path) -> None:
    assert message in mistake(tmp_path, text)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"worker"', "3", "name of node 1 is 3: expected a name in quotes"),
        ('"worker"', '"a\\nb"', "name of node 'a\\nb' is \"a\\nb\""),
        ("cores", "core", "unknown key 'core' of node 'worker': did you mean 'cores'? choose from name, count, cores"),
        ("cores", '"c\\nd"', "unknown key 'c\\nd' of node 'worker'"),
        ("cores = 24", "", "cores of node 'worker' is missing: expected a whole number"),
        ("24", "0", "cores of node 'worker' is 0: expected a whole number from 1 to 65536"),
        ("24", "2.5", "cores of node 'worker' is 2.5"),
        ("24", "true", "cores of node 'worker' is true"),
        ("24", f"0x{'f' * 5000}", "cores of node 'worker' is a number too long to show"),
        ("24", f"[{'1, ' * 99}]", " ...: expected a whole number"),
        ("448", "-1", "memory_gb of node 'worker' is -1: expected a number more than 0"),
        ("448", "nan", "memory_gb of node 'worker' is NaN"),
        ("448", "inf", "memory_gb of node 'worker' is Infinity"),
        ("448", '"much"', "memory_gb of node 'worker' is \"much\""),
        ("gpus = 4", "gpus = 0", "gpus of node 'worker' is 0"),
        ("gpus = 4", "", "gpus of node 'worker' is missing: expected how many, as in gpus = 8"),
        ("gpus = 4", "gpus = 60000\ncount = 60000", "have 3600000000 devices: there may be at most 65536"),
        ('gpu = "P100"', "", "gpu of node 'worker' is missing: expected one of H200,"),
        ("P100", "h10", "gpu of node 'worker' is \"h10\": expected one of H200, H100"),
        ("P100", "p100", "or a table with memory_gb, tflops and bandwidth_gb_per_s; did you mean 'P100'?"),
        ('"P100"', "{ memory_gb = 8 }", "tflops of gpu of node 'worker' is missing"),
        ('"P100"', "{ memory = 8 }", "unknown key 'memory' of gpu of node 'worker': did you mean 'memory_gb'?"),
        ("gpu", "tpu", "tpu of node 'worker' is \"P100\": expected a table with memory_gb"),
        ("0.01", "0", "latency_ms of link of node 'worker' is 0"),
        ("gb_per_s = 10", "gb_per_s = 10, gbit_per_s = 80", "expected either gb_per_s or gbit_per_s, not both"),
        (", gb_per_s = 10", "", "gb_per_s of link of node 'worker' is missing"),
        ("{ latency_ms = 0.01, gb_per_s = 10 }", '"fast"', "link of node 'worker' is \"fast\": expected a table"),
    ],
)
def test_mistakes_in_a_node_get_one_line(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert message in mistake(tmp_path, LINK + NODE.replace(old, new))


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^unknown machines 'dgx-h10': did you mean 'dgx-h100'\? choose from .*path"):
        read_machines("dgx-h10")
    with pytest.raises(ConfigError, match=r"^cannot read machines '.*b\.toml': No such file or directory$"):
        read_machines(tmp_path / "b.toml")
    (tmp_path / "c.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"c\.toml' are not TOML: "):
        read_machines(tmp_path / "c.toml")
    with pytest.raises(ConfigError, match=r"^cannot read machines '.*': Is a directory$"):
        read_machines(tmp_path)
