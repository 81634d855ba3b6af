"""A run's policy as files that need no Fragmenta: arrays by name, functions for JAX alone, and a description."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
from safetensors.numpy import save

from fragmenta.algorithms import Algorithm
from fragmenta.envs import Box, Environment
from fragmenta.errors import ConfigError
from fragmenta.rl import keys_by_index
from fragmenta.runs.opening import Run
from fragmenta.runs.run_directory import named_arrays, sha256, write_whole
from fragmenta.version import __version__
from fragmenta_core.spaces import assemble, leaves, to_json

FORMAT = 1
PLATFORMS = ("cpu", "cuda")
EXAMPLE = """\
import pathlib, jax.export  # and flatbuffers must be installed
policy = jax.export.deserialize(bytearray(pathlib.Path("policy.jaxexport").read_bytes()))
{results} = policy.call({arguments})"""


def export(run: Run, directory: Path) -> dict[str, Any]:
    """Write `policy.json`, `policy.safetensors`, `policy.jaxexport` (the likeliest actions) and
    `policy_stochastic.jaxexport` (drawn ones) into the directory; what `policy.json` says is returned."""
    params = run.params()
    inputs = policy_inputs(run.algorithm, run.env)
    functions = {
        name: bytes(exported_policy(run.algorithm, run.env, params, stochastic).serialize())
        for name, stochastic in (("policy.jaxexport", False), ("policy_stochastic.jaxexport", True))
    }
    files = {"policy.safetensors": save(named_arrays(params)), **functions}
    described = _described(
        run, params, inputs, {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    )
    text = json.dumps(described, indent=2, allow_nan=False) + "\n"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, data in {**files, "policy.json": text.encode()}.items():
            write_whole(directory / name, data)
    except OSError as error:
        raise ConfigError(f"cannot write to '{directory}': {error.strerror}") from None
    return described


def policy_inputs(algorithm: Algorithm, env: Environment) -> dict[str, Any]:
    """What the exported functions take, by name and in order, as shapes with any number of rows.

    An observation always; who takes part, for teams; what is remembered, for a policy with a memory.
    """
    (batch,) = jax.export.symbolic_shape("batch")
    team = () if env.team_size is None else (env.team_size,)
    shown = (jax.ShapeDtypeStruct((batch, *team, *shape), dtype) for _, shape, dtype in leaves(env.observation_space))
    inputs: dict[str, Any] = {"observation": assemble(env.observation_space, shown)}
    if team:
        inputs["alive"] = jax.ShapeDtypeStruct((batch, *team), jnp.bool_)
    memory = jax.eval_shape(lambda: algorithm.fresh_memory(1))
    if jax.tree.leaves(memory):
        inputs["memory"] = jax.tree.map(lambda x: jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype), memory)
    return inputs


def exported_policy(algorithm: Algorithm, env: Environment, params: Any, stochastic: bool) -> jax.export.Exported:
    """`decide` with the parameters inside, for any number of rows on any of the platforms.

    A stochastic one takes the two numbers of a key as well; row i draws by that key and i.
    """
    inputs = policy_inputs(algorithm, env)
    if stochastic:
        inputs["key"] = jax.ShapeDtypeStruct((2,), jnp.uint32)
    names = tuple(inputs)

    def decide(*values: Any) -> Any:
        given = dict(zip(names, values, strict=True))
        keys = None
        if "key" in given:
            rows = jax.tree.leaves(given["observation"])[0].shape[0]
            keys = keys_by_index(jax.random.wrap_key_data(given["key"], impl="threefry2x32"), rows)
        seen = given["observation"], given.get("alive", ()), given.get("memory", ())
        action, memory = algorithm.decide(env, params, *seen, keys)
        return (action, memory) if "memory" in given else action

    return jax.export.export(jax.jit(decide), platforms=PLATFORMS)(*inputs.values())


def _described(run: Run, params: Any, inputs: dict[str, Any], files: dict[str, str]) -> dict[str, Any]:
    algorithm, env = run.algorithm, run.env
    normalised = getattr(algorithm, "normalize_observations", False)
    outputs = ["action", "memory"] if "memory" in inputs else ["action"]
    return {
        "format": FORMAT,
        "algorithm": run.config["algorithm"],
        "hyper_parameters": run.config["hyper_parameters"],
        "env": run.env_name,
        "env_options": run.config["env_options"],
        "observation_space": _strict(to_json(env.observation_space)),
        "action_space": _strict(to_json(env.action_space)),
        "agents": env.team_size,
        "arrays": {name: list(array.shape) for name, array in named_arrays(params).items()},
        "normalisation": "observations are normalised inside the functions, by the arrays moments.*"
        if normalised
        else None,
        "inputs": {name: _shape(value) for name, value in inputs.items()},
        "stochastic_inputs": {"key": {"shape": [2], "dtype": "uint32"}},
        "outputs": outputs,
        "memory_at_the_start": "zeros" if "memory" in inputs else None,
        "actions": _actions(env),
        "example": EXAMPLE.format(results=", ".join(outputs), arguments=", ".join(inputs)),
        "platforms": list(PLATFORMS),
        "jax": jax.__version__,
        "fragmenta": __version__,
        "params_sha256": sha256(params),
        "sha256": files,
    }


def _actions(env: Environment) -> str:
    if isinstance(env.action_space, Box):
        return "may be outside of the space, where training left it to the environment to clip them"
    return "count from 0"


def _shape(value: Any) -> Any:
    """Shapes and types as plain lists; the number of rows is called batch."""
    if isinstance(value, dict):
        return {name: _shape(part) for name, part in value.items()}
    return {"shape": [size if isinstance(size, int) else str(size) for size in value.shape], "dtype": str(value.dtype)}


def _strict(value: Any) -> Any:
    """JSON has no infinity: no bound is null."""
    if isinstance(value, dict):
        return {name: _strict(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
