"""Export a run's policy to files that work without Fragmenta: arrays by name, functions, and a description."""

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
from safetensors.numpy import save

from fragmenta.algorithms import Algorithm
from fragmenta.envs import Box, Environment
from fragmenta.errors import ConfigError
from fragmenta.evaluation.onnx_model import onnx_model, tensors
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


ONNX_EXAMPLE = """\
import onnxruntime
policy = onnxruntime.InferenceSession("policy.onnx")
{results}{comma} = policy.run(None, {{{arguments}}})"""


def export(run: Run, directory: Path, onnx: bool = False) -> dict[str, Any]:
    """Write `policy.json`, `policy.safetensors`, `policy.jaxexport` (most likely actions),
    `policy_stochastic.jaxexport` (sampled actions) and, if asked for, `policy.onnx` (most likely actions) into the
    directory; returns the content of `policy.json`."""
    run.check_one_seed()
    params = run.params()
    inputs = policy_inputs(run.algorithm, run.env)
    outputs = ("action", "memory") if "memory" in inputs else ("action",)
    model = onnx_model(decide_function(run.algorithm, run.env, params, inputs), inputs, outputs) if onnx else None
    files = {
        "policy.safetensors": save(named_arrays(params)),
        **{
            name: bytes(exported_policy(run.algorithm, run.env, params, stochastic).serialize())
            for name, stochastic in (("policy.jaxexport", False), ("policy_stochastic.jaxexport", True))
        },
        **({"policy.onnx": model.SerializeToString()} if model else {}),
    }
    description = {
        **_description(run, params, inputs, outputs),
        **({"onnx": _onnx_description(model)} if model else {}),
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    }
    text = json.dumps(description, indent=2, allow_nan=False) + "\n"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, data in {**files, "policy.json": text.encode()}.items():
            write_whole(directory / name, data)
    except OSError as error:
        raise ConfigError(f"cannot write to '{directory}': {error.strerror}") from None
    return description


def policy_inputs(algorithm: Algorithm, env: Environment) -> dict[str, Any]:
    """The inputs of the exported functions, by name and in order, as shapes with a symbolic batch size.

    Always the observation; for teams, which agents are alive; for a recurrent policy, its memory.
    """
    (batch,) = jax.export.symbolic_shape("batch")
    team = () if env.team_size is None else (env.team_size,)
    parts = (jax.ShapeDtypeStruct((batch, *team, *shape), dtype) for _, shape, dtype in leaves(env.observation_space))
    inputs: dict[str, Any] = {"observation": assemble(env.observation_space, parts)}
    if team:
        inputs["alive"] = jax.ShapeDtypeStruct((batch, *team), jnp.bool_)
    memory = jax.eval_shape(lambda: algorithm.fresh_memory(1, env.num_agents))
    if jax.tree.leaves(memory):
        inputs["memory"] = jax.tree.map(lambda x: jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype), memory)
    return inputs


def exported_policy(algorithm: Algorithm, env: Environment, params: Any, stochastic: bool) -> jax.export.Exported:
    """`decide` with the parameters baked in, for any batch size on any of the platforms.

    A stochastic one also takes the two numbers of a key; row i samples with that key and i.
    """
    inputs = policy_inputs(algorithm, env)
    if stochastic:
        inputs["key"] = jax.ShapeDtypeStruct((2,), jnp.uint32)
    decide = decide_function(algorithm, env, params, inputs)
    return jax.export.export(jax.jit(decide), platforms=PLATFORMS)(*inputs.values())


def decide_function(algorithm: Algorithm, env: Environment, params: Any, inputs: dict[str, Any]) -> Callable[..., Any]:
    """`decide` with the parameters baked in, as a function of these inputs in their order."""
    names = tuple(inputs)

    def decide(*values: Any) -> Any:
        arguments = dict(zip(names, values, strict=True))
        keys = None
        if "key" in arguments:
            rows = jax.tree.leaves(arguments["observation"])[0].shape[0]
            keys = keys_by_index(jax.random.wrap_key_data(arguments["key"], impl="threefry2x32"), rows)
        inputs = arguments["observation"], arguments.get("alive", ()), arguments.get("memory", ())
        action, memory = algorithm.decide(env, params, *inputs, keys)
        return (action, memory) if "memory" in arguments else action

    return decide


def _description(run: Run, params: Any, inputs: dict[str, Any], outputs: tuple[str, ...]) -> dict[str, Any]:
    algorithm, env = run.algorithm, run.env
    normalised = getattr(algorithm, "normalize_observations", False)
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
        "outputs": list(outputs),
        "memory_at_the_start": "zeros" if "memory" in inputs else None,
        "actions": _actions(env),
        "example": EXAMPLE.format(results=", ".join(outputs), arguments=", ".join(inputs)),
        "platforms": list(PLATFORMS),
        "jax": jax.__version__,
        "fragmenta": __version__,
        "params_sha256": sha256(params),
    }


def _onnx_description(model: Any) -> dict[str, Any]:
    inputs, outputs = tensors(model.graph.input), tensors(model.graph.output)
    arguments = ", ".join(f'"{name}": {name.replace(".", "_")}' for name in inputs)
    results = ", ".join(name.replace(".", "_") for name in outputs)
    example = ONNX_EXAMPLE.format(results=results, comma="," if len(outputs) == 1 else "", arguments=arguments)
    return {"inputs": inputs, "outputs": outputs, "example": example}


def _actions(env: Environment) -> str:
    if isinstance(env.action_space, Box):
        return "may be outside of the space; in training, the environment clips them"
    return "count from 0"


def _shape(value: Any) -> Any:
    """Shapes and types as plain JSON; the batch size is called batch."""
    if isinstance(value, dict):
        return {name: _shape(part) for name, part in value.items()}
    return {"shape": [size if isinstance(size, int) else str(size) for size in value.shape], "dtype": str(value.dtype)}


def _strict(value: Any) -> Any:
    """JSON has no infinity, so an infinite bound becomes null."""
    if isinstance(value, dict):
        return {name: _strict(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
