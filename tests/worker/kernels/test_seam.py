"""Where the worker makes kernels, and what it does where it cannot."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragmenta
from fragmenta.engines.hardware import local_cluster
from fragmenta.engines.job import jax_settings, use_jax_settings
from fragmenta.engines.kernel_listing import kernel_lines
from fragmenta.worker import deploy
from fragmenta.worker.backends import kernel
from fragmenta.worker.backends.xla import site
from fragmenta.worker.kernels import launch, nvrtc
from kernel_launchers import launcher


def trained(kernels: str = "off") -> Any:
    options = fragmenta.RunOptions(kernels=kernels)
    small = {"num_envs": 8, "horizon": 8, "minibatches": 2, "epochs": 1, "hidden": (16,)}
    result = fragmenta.train(
        "ppo", "CartPole-v1", "fused", "local", total_steps=256, options=options, progress=False, **small
    )
    return jax.tree.leaves(result.params)


def test_training_with_kernels_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = trained()
    made = []

    def prepare(found: Any) -> Any:
        made.append(found)
        return launcher("interpreted")(found)

    monkeypatch.setattr(deploy, "tuned_launcher", lambda where: prepare)
    for a, b in zip(trained(), expected, strict=True):
        np.testing.assert_allclose(a, b, 1e-4, 1e-4)
    assert made


def test_a_program_that_does_not_compile_is_left_to_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(found: Any) -> Any:
        shapes = list(found.outputs)
        return lambda arrays: jax.ffi.ffi_call("no such call", shapes)(*arrays)

    expected = trained()
    monkeypatch.setattr(deploy, "tuned_launcher", lambda where: prepare)
    for a, b in zip(trained(), expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_cpu_has_no_kernels() -> None:
    assert kernel.launcher_for(site(("cpu:0",))) is None
    assert kernel.obstacle(jax.devices("cpu")[0]) == "no NVIDIA GPU"


def test_kernels_on_reaches_other_processes() -> None:
    assert not kernel.Switch.on
    kernel.use_kernels(True)
    settings = jax_settings()
    kernel.use_kernels(False)
    use_jax_settings(settings)
    assert kernel.Switch.on
    kernel.use_kernels(False)


@dataclasses.dataclass
class _Gpu:
    platform: str = "gpu"
    client: Any = dataclasses.field(default_factory=lambda: type("Client", (), {"platform_version": "cuda 13000"}))
    compute_capability: str = "9.0"


def test_what_stands_in_the_way_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "library", lambda: object())
    assert kernel.obstacle(_Gpu()) == ""
    assert "7.5" in kernel.obstacle(_Gpu(compute_capability="7.5"))
    monkeypatch.setattr(nvrtc, "library", lambda: None)
    assert "pip install nvidia-cuda-nvrtc" in kernel.obstacle(_Gpu())


def test_a_call_for_a_gpu_carries_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "ptx", lambda text, capability, cache: f"// {capability}\n{text}")

    def loop(x: jax.Array) -> Any:
        return jax.lax.scan(lambda carry, _: (carry * 2, carry), x, length=3)

    x = jnp.ones(100)
    prepare = launch.CudaLaunch("9.0", 132, None)
    rewritten = kernel.with_kernels(lambda x: jax.tree.leaves(loop(x)), [x], prepare)
    lowered = jax.jit(rewritten.function).trace(x).lower(lowering_platforms=("cuda",)).as_text()
    assert launch.TARGET in lowered
    for part in ("block_x = 32 : i32", "grid_x = 7 : i32", "shared_mem_bytes", 'kernel_type = "ptx"', 'name = "loop0"'):
        assert part in lowered
    assert "// 9.0" in lowered


@pytest.mark.skipif(nvrtc.library() is None, reason="NVRTC is not installed")
def test_nvrtc_compiles_and_keeps_ptx(tmp_path: Any) -> None:
    source = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2.0f; }'
    text = nvrtc.ptx(source, "9.0", tmp_path)
    assert ".entry twice" in text
    assert [path.read_text() for path in tmp_path.iterdir()] == [text]
    with pytest.raises(nvrtc.CompileError, match="error"):
        nvrtc.ptx("nonsense", "9.0")


def test_the_listing_of_a_plan_says_what_became_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deploy, "tuned_launcher", lambda where: launcher("interpreted"))
    algorithm = fragmenta.PPO(num_envs=80, horizon=8, minibatches=2)
    plan = fragmenta.project(fragmenta.trace(algorithm, fragmenta.make("CartPole-v1")), "fused", local_cluster())
    title, *rest = kernel_lines(plan)
    assert title.startswith("kernels in all: loop x8(act, step), learn: loop0 (80 rows), rows"), title
    assert all(line.startswith("  stays with XLA: loop x") for line in rest)
    assert rest
    monkeypatch.undo()
    assert kernel_lines(plan) == []
