"""The machine at hand: its devices as JAX names them, its cores and memory within the limits of control groups."""

import dataclasses
import os
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from fragmenta.engines import limits
from fragmenta.engines.hardware import local_cluster
from fragmenta.engines.limits import free_memory, usable_cores, usable_memory
from fragmenta.engines.this_machine import known_model, measured_core, measured_rates, this_machine
from fragmenta.policies.machines import MODELS, Device
from fragmenta_host.options import cores


def test_it_has_the_devices_of_jax() -> None:
    machines = this_machine()
    assert machines.devices == local_cluster().devices
    (node,) = machines.nodes
    assert (node.cores, node.memory) == (usable_cores(), usable_memory())
    assert sum(device.memory for device in node.devices) == pytest.approx(node.memory, abs=len(node.devices))
    assert sum(device.flops for device in node.devices) == pytest.approx(node.cpu.flops)
    assert 1e8 < node.core.flops < 1e13
    assert 1e7 < node.core.bandwidth < 1e13
    assert this_machine() == machines, "it is measured once"
    assert measured_core(node.cores) is node.core


def test_models_are_known_by_what_jax_calls_them() -> None:
    kinds = ["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "Tesla T4", "NVIDIA GeForce RTX 4090", "NVIDIA L40"]
    models = [model and model.model for model in map(known_model, [*kinds, "NVIDIA L40S", "TPU v4", "cpu"])]
    assert models == ["H100", "A100", "T4", "RTX 4090", "L40", None, None, None]


def test_accelerators_have_the_memory_that_jax_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    known = SimpleNamespace(
        platform="gpu", device_kind="NVIDIA H100 80GB HBM3", memory_stats=lambda: {"bytes_limit": 60 * 10**9}
    )
    silent = SimpleNamespace(platform="gpu", device_kind="Tesla T4", memory_stats=lambda: None)
    unlisted = SimpleNamespace(platform="gpu", device_kind="NVIDIA L40S", memory_stats=dict)
    monkeypatch.setattr(jax, "local_devices", lambda: [known, silent, unlisted])
    monkeypatch.setattr("fragmenta.engines.this_machine.measured_rates", lambda kind: (3.0, 4.0))
    machines = this_machine()
    assert machines.devices == ("gpu:0", "gpu:1", "gpu:2")
    assert machines.device("gpu:0") == dataclasses.replace(MODELS["H100"], memory=60 * 10**9)
    assert machines.device("gpu:1") == MODELS["T4"]
    assert machines.device("gpu:2") == Device("gpu", "NVIDIA L40S", usable_memory(), 3.0, 4.0)
    assert machines.device("cpu:2") == machines.nodes[0].cpu


@pytest.mark.full
def test_an_unknown_device_is_measured_with_jax() -> None:
    flops, bandwidth = measured_rates(jax.local_devices()[0].device_kind)
    assert 1e8 < flops < 1e15
    assert 1e7 < bandwidth < 1e14


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(limits, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(limits, "OWN_GROUPS", tmp_path / "cgroup")
    return tmp_path / "groups"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_without_control_groups_the_whole_machine_is_usable(groups: Path) -> None:
    assert usable_cores() == cores()
    assert usable_memory() == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_the_tightest_limit_of_all_groups_counts(groups: Path) -> None:
    write(groups.parent / "cgroup", "0::/a/b")
    write(groups / "a" / "b" / "memory.max", "max")
    write(groups / "a" / "memory.max", "1000000")
    write(groups / "memory.max", "2000000")
    write(groups / "a" / "b" / "cpu.max", "max 100000")
    write(groups / "a" / "cpu.max", "150000 100000")
    assert usable_memory() == 1000000
    assert usable_cores() == 1


def test_memory_that_only_caches_files_is_free(groups: Path) -> None:
    write(groups.parent / "cgroup", "0::/a")
    assert 0 < free_memory() <= usable_memory()
    write(groups / "a" / "memory.max", "1000000")
    write(groups / "a" / "memory.current", "700000")
    assert free_memory() == 300000
    write(groups / "a" / "memory.stat", "anon 500000\ninactive_file 100000\nactive_file 50000")
    assert free_memory() == 400000
    write(groups / "a" / "memory.current", "1200000")
    assert free_memory() == 0


def test_limits_of_the_first_version_of_control_groups(groups: Path) -> None:
    write(groups.parent / "cgroup", "3:memory:/x\n2:cpu,cpuacct:/\n0::/")
    write(groups / "memory" / "x" / "memory.limit_in_bytes", "4096")
    write(groups / "memory" / "memory.limit_in_bytes", "9223372036854771712")
    write(groups / "cpu" / "cpu.cfs_quota_us", "-1")
    write(groups / "cpu" / "cpu.cfs_period_us", "100000")
    assert usable_memory() == 4096
    assert usable_cores() == cores()


def test_a_container_sees_its_own_group_as_the_root(groups: Path) -> None:
    """The path is that of the machine, which does not exist in the container."""
    write(groups.parent / "cgroup", "0::/docker/0123")
    write(groups / "memory.max", "5000")
    write(groups / "cpu.max", "50000 100000")
    assert (usable_memory(), usable_cores()) == (5000, 1)
