"""An exported policy acts like `decide`, without Fragmenta."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from fragmenta import A2C, MAPPO, PPO, Algorithm, EnvOptions, RecurrentPPO, Stack, load, make, train
from fragmenta.algorithms import DQN, MADDPG, VDN, DiscreteSAC
from fragmenta.envs import Environment
from fragmenta.evaluation.export import export, exported_policy
from fragmenta.rl import keys_by_index
from fragmenta.runs.run_directory import named_arrays
from fragmenta_core.spaces import assemble, leaves
from small_teams import UnlikeTeam

SMALL: dict[str, Any] = {"num_envs": 4, "horizon": 8, "hidden": (8,), "total_steps": 32}


def some_inputs(algorithm: Algorithm, env: Environment, rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    team = () if env.team_size is None else (env.team_size,)
    arrays = [rng.integers(2, size=(rows, *team, *s)).astype(d) for _, s, d in leaves(env.observation_space)]
    inputs = {"observation": assemble(env.observation_space, iter(arrays))}
    if team:
        inputs["alive"] = rng.random((rows, *team)) < 0.8
    if isinstance(algorithm, RecurrentPPO):
        inputs["memory"] = rng.normal(size=(rows, algorithm.memory)).astype(np.float32)
    return inputs


def assert_legal(inputs: dict[str, Any], actions: Any) -> None:
    """Assert that actions are legal, where some are, if observations say which."""
    if isinstance(inputs["observation"], dict) and "action_mask" in inputs["observation"]:
        legal = inputs["observation"]["action_mask"] > 0
        is_legal = np.take_along_axis(legal, np.asarray(actions)[..., None], axis=-1)[..., 0]
        assert is_legal[legal.any(axis=-1) & inputs.get("alive", True)].all()


def decisions(algorithm: Algorithm, env: Environment, params: Any, inputs: dict[str, Any], key: Any) -> list[Any]:
    keys = None if key is None else keys_by_index(key, len(jax.tree.leaves(inputs["observation"])[0]))
    arguments = inputs["observation"], inputs.get("alive", ()), inputs.get("memory", ())
    return jax.tree.leaves(jax.jit(lambda *arguments: algorithm.decide(env, params, *arguments, keys))(*arguments))


@pytest.mark.brief("RecurrentPPO*", "DQN*")
@pytest.mark.parametrize(
    ("algorithm", "env"),
    [
        (PPO(**SMALL, normalize_observations=True, compute="bfloat16"), make("CartPole-v1")),
        (A2C(**SMALL), Stack(make("Pendulum-v1"), 2)),
        (RecurrentPPO(**SMALL, memory=4), make("CartPole-v1")),
        (MAPPO(num_envs=4, horizon=5, hidden=(8,), shared=False), make("ProbeTeam")),
        (DQN(num_envs=4, hidden=(8,)), make("ProbeMask")),
        (DiscreteSAC(num_envs=4, hidden=(8,)), make("ProbeMask")),
        (VDN(num_envs=4, hidden=(8,)), UnlikeTeam()),
        (MADDPG(num_envs=4, hidden=(8,)), UnlikeTeam()),
        pytest.param(A2C(**SMALL), make("host_envs:Parts", EnvOptions(env_mode="serial")), marks=pytest.mark.full),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_same_actions_for_any_number_of_rows(algorithm: Algorithm, env: Environment) -> None:
    shapes = jax.eval_shape(lambda: algorithm.params(algorithm.init(env, jax.random.key(0))))
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda x: jnp.asarray(rng.random(x.shape), x.dtype), shapes)
    greedy, sampling = (exported_policy(algorithm, env, params, stochastic) for stochastic in (False, True))
    assert set(greedy.platforms) == {"cpu", "cuda"}
    key = jax.random.key(5)
    for rows in (1, 6):
        inputs = some_inputs(algorithm, env, rows)
        actual = jax.tree.leaves(greedy.call(*inputs.values()))
        assert_legal(inputs, actual[0])
        for a, b in zip(actual, decisions(algorithm, env, params, inputs, None), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        actual = jax.tree.leaves(sampling.call(*inputs.values(), jax.random.key_data(key)))
        assert_legal(inputs, actual[0])
        for a, b in zip(actual, decisions(algorithm, env, params, inputs, key), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


LOADS = """
import sys, json, pathlib
sys.modules["fragmenta"] = None  # makes any import of it fail
import jax, jax.export, numpy as np
folder, inputs = pathlib.Path(sys.argv[1]), np.load(sys.argv[2])
described = json.loads((folder / "policy.json").read_text())
given = [inputs[name] for name in described["inputs"]]
likeliest, drawn = (
    jax.export.deserialize(bytearray((folder / name).read_bytes()))
    for name in ("policy.jaxexport", "policy_stochastic.jaxexport")
)
key = jax.random.key_data(jax.random.key(5))
results = jax.tree.leaves((likeliest.call(*given), drawn.call(*given, key)))
np.savez(sys.argv[3], *results)
assert not [name for name in sys.modules if name.startswith(("fragmenta.", "flax", "optax"))]
"""


@pytest.mark.full
@pytest.mark.parametrize(
    "algorithm", [PPO(**SMALL), pytest.param(RecurrentPPO(**SMALL, memory=4), marks=pytest.mark.full)]
)
def test_a_process_without_fragmenta_acts_the_same(algorithm: Algorithm, tmp_path: Path) -> None:
    train(algorithm, "CartPole-v1", run_dir=tmp_path / "run")
    run = load(tmp_path / "run")
    description = export(run, tmp_path / "out")
    for name, fingerprint in description["sha256"].items():
        assert hashlib.sha256((tmp_path / "out" / name).read_bytes()).hexdigest() == fingerprint
    assert description == json.loads((tmp_path / "out" / "policy.json").read_text())
    arrays, expected = load_file(tmp_path / "out" / "policy.safetensors"), named_arrays(run.params())
    assert arrays.keys() == expected.keys()
    inputs = some_inputs(algorithm, run.env, 9)
    np.savez(tmp_path / "inputs.npz", **inputs)
    arguments = [tmp_path / "out", tmp_path / "inputs.npz", tmp_path / "results.npz"]
    command = [sys.executable, "-c", LOADS, *map(str, arguments)]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert completed.returncode == 0, completed.stderr
    with np.load(tmp_path / "results.npz") as results:
        actual = [results[name] for name in results.files]
    params = run.params()
    expected = [x for key in (None, jax.random.key(5)) for x in decisions(algorithm, run.env, params, inputs, key)]
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
