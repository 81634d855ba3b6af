"""A finished run can be opened from its directory alone."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fragmenta import (
    A2C,
    MAPPO,
    PPO,
    Algorithm,
    ConfigError,
    Environment,
    EnvOptions,
    RecurrentPPO,
    RunOptions,
    Stack,
    load,
    make,
    train,
)
from fragmenta.envs.probes import ProbeMemory

SMALL: dict[str, Any] = {"num_envs": 4, "horizon": 8, "hidden": (8,), "total_steps": 32}


@dataclasses.dataclass(frozen=True)
class OfMyOwn(PPO):
    """An unregistered algorithm."""

    blend: Callable[[float], float] | None = None


@pytest.mark.full
@pytest.mark.parametrize(
    ("algorithm", "env", "options", "names"),
    [
        (PPO(**SMALL, normalize_observations=True), "CartPole-v1", None, ("ppo", "CartPole-v1")),
        pytest.param(
            RecurrentPPO(**SMALL),
            Stack(make("CartPole-v1"), 3),
            None,
            ("ppo_gru", "CartPole-v1"),
            marks=pytest.mark.full,
        ),
        (MAPPO(num_envs=4, horizon=5, total_steps=20, hidden=(8,)), "ProbeTeam", None, ("mappo", "ProbeTeam")),
        (OfMyOwn(**SMALL), "Pendulum-v1", EnvOptions(stack=2), ("test_runs:OfMyOwn", "Pendulum-v1")),
        (
            A2C(**SMALL),
            "host_envs:Counter",
            EnvOptions(env_args='{"ends": 5}', wrappers=("host_envs:Doubled",), stack=2, env_mode="serial"),
            ("a2c", "host_envs:Counter"),
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Algorithm) else "",
)
def test_algorithm_environment_and_parameters_are_restored(
    algorithm: Algorithm, env: str | Environment, options: EnvOptions | None, names: tuple[str, str], tmp_path: Path
) -> None:
    result = train(algorithm, env, run_dir=tmp_path / "run", options=RunOptions(env=options))
    run = load(tmp_path / "run")
    assert run.algorithm == algorithm
    assert (run.config["algorithm"], run.env_name) == names
    expected = make(env, options)
    if isinstance(env, str) and ":" in env:
        assert run.env.pool.spec == expected.pool.spec  # pyright: ignore[reportAttributeAccessIssue]
        assert run.env.pool.options == expected.pool.options  # pyright: ignore[reportAttributeAccessIssue]
    else:
        assert run.env == expected
    params = run.params()
    assert jax.tree.structure(params) == jax.tree.structure(result.params)
    jax.tree.map(np.testing.assert_array_equal, params, result.params)


@pytest.mark.full
def test_objects_that_files_cannot_describe_are_passed_in_python(tmp_path: Path) -> None:
    algorithm, env = OfMyOwn(**SMALL, blend=abs), ProbeMemory(blanks=7)
    train(algorithm, env, run_dir=tmp_path / "run")
    with pytest.raises(ConfigError, match=r"cannot be stored in a file \(blend\): pass the algorithm"):
        load(tmp_path / "run")
    with pytest.raises(ConfigError, match="environment 'ProbeMemory' that was created in Python: pass it"):
        load(tmp_path / "run", algorithm=algorithm)
    run = load(tmp_path / "run", algorithm, env)
    assert (run.algorithm, run.env) == (algorithm, env)
    run.params()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    train(PPO(**SMALL), "CartPole-v1", run_dir=path)
    return path


def copy_of(finished: Path, to: Path, **changes: Any) -> Path:
    """A copy of the run with changed entries in its configuration; None removes an entry."""
    to.mkdir()
    config = json.loads((finished / "config.json").read_text()) | changes
    (to / "config.json").write_text(json.dumps({name: value for name, value in config.items() if value is not None}))
    (to / "params.safetensors").write_bytes((finished / "params.safetensors").read_bytes())
    return to


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": None}, r"has schema None \(fragmenta .*\), but this version reads schema 1"),
        ({"schema": 2}, "has schema 2"),
        ({"hyper_parameters": None}, "has no usable 'hyper_parameters'"),
        ({"env": 3}, "has no usable 'env'"),
        ({"hyper_parameters": {"horizn": 3}}, "does not accept the run's hyper-parameters: .*'horizn'"),
        ({"env_options": {"stak": 3}}, "env_options that this version does not know: .*'stak'"),
        ({"algorithm": "no_such_module:Mine"}, "cannot load algorithm 'no_such_module:Mine': .*pass the algorithm"),
        ({"algorithm": "pathlib:Path"}, "'pathlib:Path' is not an algorithm class"),
        ({"env": "CartPole-v7"}, "unknown environment 'CartPole-v7'"),
    ],
)
def test_an_invalid_configuration(finished: Path, tmp_path: Path, changes: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        load(copy_of(finished, tmp_path / "run", **changes))
    assert "\n" not in str(raised.value)


def test_a_directory_that_is_no_run(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no run directory"):
        load(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"has no config.json"):
        load(tmp_path)
    copy = copy_of(finished, tmp_path / "run")
    (copy / "config.json").write_text('{"schema": 1,')
    with pytest.raises(ConfigError, match=r"cannot read '.*config.json'"):
        load(copy)


def test_parameters_that_do_not_fit(finished: Path, tmp_path: Path) -> None:
    run = load(copy_of(finished, tmp_path / "run"))
    file = tmp_path / "run" / "params.safetensors"
    arrays = load_file(file)
    name = "policy.params.kernel_0"
    for wrong_arrays, message in (
        ({k: v for k, v in arrays.items() if k != name}, f"has no '{name}'"),
        (arrays | {"more": arrays[name]}, "has an unknown 'more'"),
        (arrays | {name: arrays[name][:2].copy()}, rf"'{name}' in .* is float32\[2, 8\], but .* need float32\[4, 8\]"),
    ):
        save_file(wrong_arrays, file)
        with pytest.raises(ConfigError, match=message):
            run.params()
    file.write_bytes(b"torn")
    with pytest.raises(ConfigError, match="cannot read"):
        run.params()
    file.unlink()
    with pytest.raises(ConfigError, match="has no intact checkpoint"):
        run.params()
