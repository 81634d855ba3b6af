"""A policy in ONNX acts like `decide`, in a runtime that knows nothing of JAX."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fragmenta import A2C, MAPPO, PPO, Algorithm, EnvOptions, RecurrentPPO, Stack, load, make, train
from fragmenta.algorithms import ALGORITHMS
from fragmenta.cli.main import main
from fragmenta.envs import Environment
from fragmenta.errors import ConfigError
from fragmenta.evaluation.export import decide_function, export, policy_inputs
from fragmenta.evaluation.onnx_model import onnx_model
from fragmenta.evaluation.onnx_rules import RULES
from fragmenta_core.spaces import Box, Dict, Discrete, MultiDiscrete, assemble, leaves
from small_teams import AimingTeam, UnlikeTeam

onnxruntime = pytest.importorskip("onnxruntime", reason="needs fragmenta[onnx]")
SMALL: dict[str, Any] = {"num_envs": 4, "horizon": 8, "hidden": (16, 8), "total_steps": 32}


class Shown(Environment):
    """Any spaces, for algorithms that are asked to act and never to train."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self._spaces = observation_space, action_space

    @property
    def observation_space(self) -> Any:
        return self._spaces[0]

    @property
    def action_space(self) -> Any:
        return self._spaces[1]

    def initial(self, key: jax.Array) -> Any:
        parts = (jnp.zeros(shape, dtype) for _, shape, dtype in leaves(self.observation_space))
        return assemble(self.observation_space, parts)

    def observe(self, state: Any) -> Any:
        return state


ATARI = Box(0, 255, (84, 84, 4), "uint8")
SMALL_CAMERA = Box(0, 255, (3, 12, 12), "uint8")
CASES = {
    "discrete": (PPO(**SMALL), make("CartPole-v1")),
    "continuous": (A2C(**SMALL), make("Pendulum-v1")),
    "normalised": (PPO(**SMALL, normalize_observations=True), make("CartPole-v1")),
    "stacked": (A2C(**SMALL, normalize_observations=True), Stack(make("Pendulum-v1"), 2)),
    "recurrent": (RecurrentPPO(**SMALL, memory=4, normalize_observations=True), make("CartPole-v1")),
    "convolutions": (PPO(**SMALL), Shown(ATARI, Discrete(6))),
    "channels first": (PPO(**SMALL), Shown(SMALL_CAMERA, Box(-1.0, 1.0, (2, 2)))),
    "recurrent convolutions": (RecurrentPPO(**SMALL, memory=4), Shown(SMALL_CAMERA, MultiDiscrete((3, 2)))),
    "parts": (A2C(**SMALL), make("host_envs:Parts", EnvOptions(env_mode="serial"))),
    "a team": (MAPPO(num_envs=4, horizon=5, hidden=(8,), shared=False), make("ProbeTeam")),
    "a team that shares": (MAPPO(num_envs=4, horizon=5, hidden=(8,), shared=True), make("ProbeTeam")),
}


def some_params(algorithm: Algorithm, env: Environment) -> Any:
    shapes = jax.eval_shape(lambda: algorithm.params(algorithm.init(env, jax.random.key(0))))
    rng = np.random.default_rng(1)

    def positive_moments(path: Any, x: Any) -> Any:
        scale = 0.3 if len(x.shape) > 1 else 1.0
        values = rng.normal(size=x.shape) * scale
        return jnp.asarray(np.abs(values) + 1 if "moments" in str(path) else values, x.dtype)

    return jax.tree_util.tree_map_with_path(positive_moments, shapes)


def some_values(shape: Any, rows: int, rng: np.random.Generator) -> np.ndarray:
    size = (rows, *shape.shape[1:])
    if shape.dtype == jnp.bool_:
        return rng.random(size) < 0.7
    if jnp.issubdtype(shape.dtype, jnp.integer):
        return rng.integers(256 if shape.dtype == jnp.uint8 else 2, size=size).astype(shape.dtype)
    return rng.normal(size=size).astype(shape.dtype)


def acts_the_same(algorithm: Algorithm, env: Environment, params: Any, tolerance: float) -> None:
    inputs = policy_inputs(algorithm, env)
    decide = decide_function(algorithm, env, params, inputs)
    outputs = ("action", "memory") if "memory" in inputs else ("action",)
    session = onnxruntime.InferenceSession(onnx_model(decide, inputs, outputs).SerializeToString())
    rng = np.random.default_rng(0)
    for rows in (1, 7):
        values = jax.tree.map(lambda shape, rows=rows: some_values(shape, rows, rng), inputs)
        arrays = [array for value in (values[name] for name in inputs) for array in jax.tree.leaves(value)]
        given = dict(zip((tensor.name for tensor in session.get_inputs()), arrays, strict=True))
        actual = session.run(None, given)
        expected = jax.tree.leaves(jax.jit(decide)(*(values[name] for name in inputs)))
        for a, b in zip(actual, expected, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.brief("discrete", "recurrent")
@pytest.mark.parametrize("case", CASES)
def test_the_same_actions_for_any_number_of_rows(case: str) -> None:
    algorithm, env = CASES[case]
    acts_the_same(algorithm, env, some_params(algorithm, env), 1e-4)


TEAMS, CONTINUOUS = ("mappo", "ippo", "vdn", "qmix", "maddpg"), ("sac", "td3", "ddpg")
SEVERAL_CHOICES = ("ppo", "ppo_gru", "ppo_lstm", "ppo_transformer", "a2c", "reinforce", "impala")
SWITCHES: dict[str, tuple[dict[str, Any], ...]] = {
    "dqn": (
        *({"dueling": True}, {"noisy": True}, {"distribution": "c51"}, {"distribution": "quantile"}),
        {"dueling": True, "noisy": True, "distribution": "c51"},
    ),
    "r2d2": ({"dueling": False}, {"cell": "lstm"}, {"cell": "transformer"}),
    **dict.fromkeys(SEVERAL_CHOICES, ({"normalize_observations": True},)),
    **dict.fromkeys(TEAMS, ({"shared": True}, {"shared": False})),
}
"""What else the networks of an algorithm may look like, besides by default."""


def with_masks(seen: Box, actions: Discrete | MultiDiscrete, entries: int, dtype: str) -> Environment:
    return Shown(Dict((("action_mask", Box(0, 1, (entries,), dtype)), ("observation", seen))), actions)


def environments(name: str) -> dict[str, Environment]:
    """One environment of each kind that the algorithm takes."""
    vector, two = Box(-1.0, 1.0, (3,)), Box(-2.0, 1.0, (2,))
    if name in TEAMS:
        continuous = {"continuous": AimingTeam()} if name == "maddpg" else {}
        return {"plain": make("ProbeTeam"), "masks": UnlikeTeam(), **continuous}
    if name in CONTINUOUS:
        return {"plain": Shown(vector, two), "images": Shown(SMALL_CAMERA, two)}
    by_kind: dict[str, Environment] = {
        "plain": Shown(vector, Discrete(4)),
        "images": Shown(SMALL_CAMERA, Discrete(4)),
        "masks": with_masks(vector, Discrete(4), 4, "int8"),
        "images masks": with_masks(SMALL_CAMERA, Discrete(4), 4, "bool"),
    }
    if name in SEVERAL_CHOICES:
        by_kind["choices masks"] = with_masks(vector, MultiDiscrete((3, 2)), 5, "float32")
    return by_kind


def tiny(name: str, switches: dict[str, Any]) -> Algorithm:
    fields = {field.name for field in dataclasses.fields(ALGORITHMS[name])}
    sizes = {"num_envs": 4, "hidden": (16, 8), "memory": 4, "window": 3}
    return ALGORITHMS[name](**{field: size for field, size in sizes.items() if field in fields}, **switches)


EVERY = {
    " ".join((name, *(f"{switch}={value}" for switch, value in switches.items()), kind)): (tiny(name, switches), env)
    for name in ALGORITHMS
    for switches in ({}, *SWITCHES.get(name, ()))
    for kind, env in environments(name).items()
}


@pytest.mark.brief("a2c choices masks", "sac plain", "dqn distribution=c51 masks")
@pytest.mark.parametrize("case", EVERY)
def test_every_algorithm_is_exported_with_masks_and_without(case: str) -> None:
    algorithm, env = EVERY[case]
    algorithm.validate(env)
    acts_the_same(algorithm, env, some_params(algorithm, env), 1e-4)


def test_bfloat16_becomes_float32() -> None:
    algorithm, env = A2C(**SMALL, compute="bfloat16"), make("Pendulum-v1")
    acts_the_same(algorithm, env, some_params(algorithm, env), 5e-2)


@pytest.mark.full
def test_the_description_names_what_the_file_takes_and_returns(tmp_path: Path) -> None:
    train(RecurrentPPO(**SMALL, memory=4), "CartPole-v1", run_dir=tmp_path / "run")
    run = load(tmp_path / "run")
    export(run, tmp_path / "out", onnx=True)
    described = json.loads((tmp_path / "out" / "policy.json").read_text())
    inputs, outputs = described["onnx"]["inputs"], described["onnx"]["outputs"]
    assert inputs["memory"] == {"shape": ["batch", 4], "dtype": "float32"}
    session = onnxruntime.InferenceSession(tmp_path / "out" / "policy.onnx")
    assert [tensor.name for tensor in session.get_inputs()] == list(inputs) == ["observation", "memory"]
    assert [tensor.name for tensor in session.get_outputs()] == list(outputs) == ["action", "next_memory"]
    names: dict[str, Any] = {"observation": np.ones((3, 4), np.float32), "memory": np.zeros((3, 4), np.float32)}
    example = described["onnx"]["example"].replace('"policy.onnx"', repr(str(tmp_path / "out" / "policy.onnx")))
    exec(example, names)
    assert names["action"].shape == (3,)
    assert names["next_memory"].shape == (3, 4)


def _of_positive(name: str) -> Any:
    return lambda x: getattr(jax.lax, name)(x * x + 1)


def _of_two(name: str) -> Any:
    return lambda x: getattr(jax.lax, name)(x, 1 - x)


OPERATIONS: dict[str, Any] = {
    **{name: getattr(jax.lax, name) for name in ("neg", "abs", "sign", "exp", "tanh", "sin", "cos", "floor", "ceil")},
    **{name: getattr(jax.lax, name) for name in ("erf", "logistic", "square")},
    **{name: _of_positive(name) for name in ("log", "sqrt", "rsqrt")},
    **{name: _of_two(name) for name in ("add", "sub", "mul", "div", "max", "min", "rem")},
    **{name: _of_two(name) for name in ("eq", "ne", "gt", "lt", "ge", "le")},
    "pow": lambda x: jax.lax.pow(x * x, x),
    "integer_pow": lambda x: x**3,
    "and": lambda x: (x > 0) & (x < 1),
    "or": lambda x: (x > 1) | (x < 0),
    "not": lambda x: ~(x > 0),
    "reduce_or": lambda x: (x > 1).any(1),
    "reduce_and": lambda x: (x > -1).all(1),
    "reduce_sum": lambda x: x.sum(1),
    "reduce_max": lambda x: x.max(1),
    "reduce_min": lambda x: x.min(1),
    "argmax": lambda x: x.argmax(1),
    "argmin": lambda x: x.argmin(1),
    "copy": jnp.copy,
    "stop_gradient": jax.lax.stop_gradient,
    "clamp": lambda x: jax.lax.clamp(-0.5, x, 0.5),
    "select_n": lambda x: jnp.where(x > 0, x, 7.0),
    "reshape": lambda x: x.reshape(-1, 2, 3),
    "squeeze": lambda x: jax.lax.squeeze(x[:, None], (1,)),
    "broadcast_in_dim": lambda x: jnp.broadcast_to(x[:, None], (x.shape[0], 2, 6)) + jnp.ones((x.shape[0], 1, 1)),
    "transpose": lambda x: x.reshape(-1, 2, 3).transpose(0, 2, 1),
    "concatenate": lambda x: jnp.concatenate([x, -x], axis=1),
    "stack": lambda x: jnp.stack([x, -x], axis=1),
    "split": lambda x: jnp.concatenate(jnp.split(x, (1, 3), axis=1)[::-1], axis=1),
    "slice": lambda x: jax.lax.slice(x, (0, 1), (x.shape[0], 6), (1, 2)),
    "gather": lambda x: (x[:, 1] + x[:, -1])[:, None] * x[:, 2:4] + x[:, ::3],
    "dot_general": lambda x: jnp.einsum("bij,bkj->bik", x.reshape(-1, 2, 3), x.reshape(-1, 2, 3)) @ jnp.ones((2, 3)),
    "conv_general_dilated": lambda x: jax.lax.conv_general_dilated(
        x.reshape(-1, 1, 2, 3), jnp.arange(8.0).reshape(2, 1, 2, 2), (1, 2), ((1, 0), (0, 1))
    ),
    "convert_element_type": lambda x: (10 * x).astype(jnp.int32),
}
"""By primitive: a function of a batch of six numbers that uses it."""


@pytest.mark.parametrize("primitive", RULES)
def test_every_rule_computes_what_jax_computes(primitive: str) -> None:
    (batch,) = jax.export.symbolic_shape("batch")
    inputs = {"x": jax.ShapeDtypeStruct((batch, 6), jnp.float32)}
    function = OPERATIONS[primitive]
    assert f" {primitive}" in str(jax.make_jaxpr(function)(*inputs.values()))
    session = onnxruntime.InferenceSession(onnx_model(function, inputs, ("y",)).SerializeToString())
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    (actual,), expected = session.run(None, {"x": x}), jax.jit(function)(x)
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_an_operation_without_a_rule_is_named() -> None:
    (batch,) = jax.export.symbolic_shape("batch")
    inputs = {"observation": jax.ShapeDtypeStruct((batch, 4), jnp.float32)}
    with pytest.raises(ConfigError, match=r"no rule for the operation sort at test_onnx\.py:\d+"):
        onnx_model(lambda x: jnp.sort(x, axis=-1), inputs, ("action",))


@pytest.mark.full
def test_without_the_package_one_line_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train(PPO(**SMALL), "CartPole-v1", run_dir=tmp_path / "run")
    capsys.readouterr()
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert main(["export", str(tmp_path / "run"), "--onnx"]) == 2
    assert "pip install 'fragmenta[onnx]'" in capsys.readouterr().err
    assert not (tmp_path / "run" / "export").exists()
