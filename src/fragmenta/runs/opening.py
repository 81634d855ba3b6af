"""Open a run again from its directory: the algorithm, the environment and the parameters."""

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fragmenta.algorithms import Algorithm
from fragmenta.envs import ADAPTERS, ENVIRONMENTS, Environment, EnvOptions, HostEnvironment, Stack, make
from fragmenta.errors import ConfigError
from fragmenta.policies import Cluster
from fragmenta.runs.checkpoints import CHECKPOINTS, CheckpointFolder
from fragmenta.engines.hardware import local_cluster, use_cpu_devices
from fragmenta.algorithms.named import algorithm_class, algorithm_name
from fragmenta.runs.run_directory import read_config
from fragmenta.runs.state import from_arrays

SCHEMA = 1
"""The version of what `config.json` says; raised whenever an older reader would take it wrongly."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A run as its directory describes it."""

    path: Path
    config: dict[str, Any]
    algorithm: Algorithm
    env_name: str
    env: Environment

    def params(self) -> Any:
        """The trained parameters, as `algorithm.params` gives them."""
        path = self.path / "params.safetensors"
        if not path.exists():
            return self._params_so_far()
        try:
            found = load_file(path)
        except (OSError, SafetensorError) as error:
            raise ConfigError(
                f"cannot read '{path}': {_one_line(error)}; take it from a backup or train again"
            ) from None
        expected = jax.eval_shape(
            lambda key: self.algorithm.params(self.algorithm.init(self.env, key)), jax.random.key(0)
        )
        return from_arrays(expected, found, f"'{path}'")

    def steps(self) -> int:
        """Environment steps behind the parameters."""
        summary = self.path / "summary.json"
        if (self.path / "params.safetensors").exists() and summary.exists():
            return json.loads(summary.read_text())["total_steps"]
        return CheckpointFolder(self.path / CHECKPOINTS).newest().steps

    def _params_so_far(self) -> Any:
        """Those of the latest checkpoint of a run that has not finished."""
        found = CheckpointFolder(self.path / CHECKPOINTS).newest()
        state = jax.eval_shape(lambda key: self.algorithm.init(self.env, key), jax.random.key(0))
        return self.algorithm.params(from_arrays(state, found.arrays, f"the checkpoint of '{self.path}'"))


def open_run(path: str | Path, algorithm: Algorithm | None = None, env: str | Environment | None = None) -> Run:
    """The run in that directory. Give the algorithm or the environment where the run cannot know how to make it."""
    path = Path(path)
    config = _read(path)
    processors = sum(device.startswith("cpu:") for device in config["devices"])
    if processors > 1:  # before anything makes an array, which fixes the number of devices
        with contextlib.suppress(ConfigError):
            use_cpu_devices(processors)
    algorithm = algorithm or _rebuild_algorithm(config)
    if env is None and config["env_options"] is None:
        wrong = f"run '{path}' was trained on an environment '{config['env']}' that was made in Python"
        raise ConfigError(f"{wrong}: pass it, as in fragmenta.open_run(path, env=...)")
    environment = make(env) if env is not None else make(config["env"], _options(config))
    algorithm.validate(environment)
    return Run(path, config, algorithm, config["env"], environment)


def cluster_of(run: Run) -> Cluster:
    """The devices and replicas that a run used; ConfigError if they are not here."""
    config, have = run.config, local_cluster().devices
    apart = config["engine"] != "local"
    missing = [device for device in config["devices"] if device not in have and not apart]
    if missing:
        used = f"'{run.path}' used {', '.join(missing)}, but here is only {', '.join(have)}"
        raise ConfigError(f"{used}: go there, or resume it with a --policy and --replicas that fit here")
    used = tuple(config["devices"]), config["replicas"], config["lag"], config["max_lag"]
    return Cluster(*used, apart=apart)


def describe_algorithm(algorithm: Algorithm) -> dict[str, Any]:
    """What `config.json` says of an algorithm: its name, its hyper-parameters, and which of them JSON cannot say."""
    values = {field.name: getattr(algorithm, field.name) for field in dataclasses.fields(algorithm) if field.init}
    unsaid = [name for name, value in values.items() if not _is_plain(value)]
    return {
        "algorithm": algorithm_name(algorithm),
        "hyper_parameters": {name: value for name, value in values.items() if name not in unsaid},
        "only_in_python": unsaid,
    }


def describe_environment(
    asked: str | Environment, env: Environment, options: EnvOptions | None
) -> tuple[str, dict[str, Any] | None]:
    """Name and options from which `make` makes the environment again; None for options if nothing does."""
    if isinstance(env, HostEnvironment):
        spec, pool = env.pool.spec, env.pool.options
        arguments = json.dumps(spec.arguments)
        made_by = EnvOptions(arguments, spec.wrappers, spec.stack, pool.mode, pool.workers, pool.restarts, pool.timeout)
        return env.title, dataclasses.asdict(made_by)
    if isinstance(asked, str):
        name, stack = asked, (options or EnvOptions()).stack
    else:
        inner, stack = (env.env, env.frames) if isinstance(env, Stack) else (env, 1)
        name = _name_of(inner)
    return (name, dataclasses.asdict(EnvOptions(stack=stack))) if name else (env.title, None)


def _name_of(env: Environment) -> str | None:
    """The name under which `make` makes an equal environment, if there is one."""
    package = type(env).__module__.rpartition(".")[2]
    if package in ADAPTERS and make(name := f"{package}:{getattr(env, 'name', '')}") == env:
        return name
    return next((name for name, maker in ENVIRONMENTS.items() if maker() == env), None)


def _read(path: Path) -> dict[str, Any]:
    config, file = read_config(path), path / "config.json"
    schema = config.get("schema") if isinstance(config, dict) else None
    if schema != SCHEMA:
        written_by = f" (fragmenta {config['version']})" if isinstance(config, dict) and "version" in config else ""
        raise ConfigError(
            f"'{file}' has schema {schema}{written_by}, and this version reads schema {SCHEMA}: "
            f"use the version that wrote it, or train again"
        )
    needed = {
        "algorithm": str,
        "hyper_parameters": dict,
        "only_in_python": list,
        "env": str,
        "env_options": dict | None,
        "devices": list,
    }
    for name, kind in needed.items():
        if name not in config or not isinstance(config[name], kind):
            raise ConfigError(f"'{file}' has no usable '{name}': it was changed by hand, take it from a backup")
    return config


def _rebuild_algorithm(config: dict[str, Any]) -> Algorithm:
    name = config["algorithm"]
    pass_it = "pass the algorithm, as in fragmenta.open_run(path, algorithm=...)"
    if config["only_in_python"]:
        unsaid = ", ".join(config["only_in_python"])
        raise ConfigError(f"hyper-parameters of '{name}' cannot be kept in a file ({unsaid}): {pass_it}")
    try:
        kind = algorithm_class(name)
    except ConfigError as error:
        raise ConfigError(f"{_one_line(error)}; or {pass_it}") from None
    try:
        return kind(**{key: _as_tuples(value) for key, value in config["hyper_parameters"].items()})
    except TypeError as error:
        raise ConfigError(f"'{name}' does not take the run's hyper-parameters: {_one_line(error)}; {pass_it}") from None


def _options(config: dict[str, Any]) -> EnvOptions:
    try:
        return EnvOptions(**{name: _as_tuples(value) for name, value in config["env_options"].items()})
    except TypeError as error:
        raise ConfigError(f"config.json has env_options that this version does not know: {_one_line(error)}") from None


def _is_plain(value: Any) -> bool:
    """Whether a value is the same after a way through JSON."""
    try:
        return _as_tuples(json.loads(json.dumps(value))) == value
    except (TypeError, ValueError):
        return False


def _as_tuples(value: Any) -> Any:
    """Lists as tuples, because hyper-parameters are hashed and JSON knows only lists."""
    return tuple(_as_tuples(part) for part in value) if isinstance(value, list) else value


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
