"""Open a run from its directory: the algorithm, the environment and the parameters."""

import contextlib
import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fragmenta.algorithms import Algorithm
from fragmenta.algorithms.named import algorithm_class, algorithm_name
from fragmenta.engines import engine_named
from fragmenta.engines.hardware import local_cluster, use_cpu_devices
from fragmenta.envs import ADAPTERS, ENVIRONMENTS, PROBES, Environment, EnvOptions, Stack, make
from fragmenta.errors import ConfigError
from fragmenta.policies import Cluster
from fragmenta.runs.checkpoints import CHECKPOINTS, Checkpoint, CheckpointFolder
from fragmenta.runs.describing import as_html, describe
from fragmenta.runs.predicting import TrainedPolicy
from fragmenta.runs.run_directory import read_config, read_json, read_records
from fragmenta.runs.seeds import Seeds, of_seed, with_seeds
from fragmenta.runs.state import from_arrays

SCHEMA = 1
"""The version of `config.json`; raised whenever an older reader would misread it."""


@dataclasses.dataclass(frozen=True, repr=False)
class Run:
    """A run as its directory describes it."""

    path: Path
    config: dict[str, Any]
    algorithm: Algorithm
    env_name: str
    env: Environment
    checkpoint: str | None = None
    """The checkpoint to take parameters from: best, last or an iteration. By default the final ones, if it ended."""

    @functools.cached_property
    def trained(self) -> Algorithm:
        """What was trained: the algorithm, or for several seeds a wrapper with the seed as the leading dimension."""
        return with_seeds(self.algorithm, self.config.get("seed", 0), self.config.get("seeds", 1))

    def check_one_seed(self) -> None:
        """Raise ConfigError if several seeds were trained, and so several policies."""
        if isinstance(self.trained, Seeds):
            one = self.path / f"seed-{self.trained.seeds[0]}"
            raise ConfigError(f"'{self.path}' has {len(self.trained.seeds)} seeds: choose one, as in '{one}'")

    def params(self) -> Any:
        """The trained parameters, as `algorithm.params` returns them; of several seeds, stacked."""
        path = self.path / "params.safetensors"
        if self.checkpoint or not path.exists():
            return self._checkpoint_params()
        try:
            arrays = load_file(path)
        except (OSError, SafetensorError) as error:
            raise ConfigError(
                f"cannot read '{path}': {_one_line(error)}; restore it from a backup or train again"
            ) from None
        return from_arrays(params_of(self.algorithm, self.env), arrays, f"'{path}'")

    def steps(self) -> int:
        """Environment steps that the parameters were trained for."""
        if not self.checkpoint and (self.path / "params.safetensors").exists():
            file = self.path / "summary.json"
            summary = read_json(file)
            if summary is not None:
                if not isinstance(summary, dict) or not isinstance(summary.get("total_steps"), int):
                    raise ConfigError(f"'{file}' has no usable 'total_steps': restore it from a backup, or remove it")
                return summary["total_steps"]
        return self._chosen_checkpoint.steps

    @functools.cached_property
    def _chosen_checkpoint(self) -> Checkpoint:
        return CheckpointFolder(self._saved.path / CHECKPOINTS).chosen(self.checkpoint or "last")

    @functools.cached_property
    def _saved(self) -> "Run":
        """The run with the checkpoints: this one, or the run of several seeds of which it is one."""
        path = self.path.parent
        is_part = self.path.name == f"seed-{self.config['seed']}" and (path / "config.json").exists()
        config = _read(path) if is_part else {}
        return dataclasses.replace(self, path=path, config=config) if config.get("seeds", 1) > 1 else self

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        alive: Any = None,
        action_mask: Any = None,
    ) -> tuple[np.ndarray, Any]:
        """The action for an observation, or those for a batch, and the memory to pass to the next call as `state`;
        `alive` says which agents of a team are active, `action_mask` which actions are legal: by default all."""
        return self._policy.predict(observation, state, episode_start, deterministic, alive, action_mask)

    def __repr__(self) -> str:
        summary = read_json(self.path / "summary.json")
        if summary:
            return f"Run '{self.path}' of {describe(summary)}"
        records = self._records()
        done = f"{records[-1]['steps']:,} steps so far" if records else "no iteration so far"
        return f"Run '{self.path}' of {describe(self.config)}: not finished, {done}"

    def _repr_html_(self) -> str:
        return as_html(repr(self), self._records(), self.config)

    def _records(self) -> list[dict[str, Any]]:
        path = self.path / "metrics.jsonl"
        return read_records(path) if path.exists() else []

    @functools.cached_property
    def _policy(self) -> TrainedPolicy:
        self.check_one_seed()
        return TrainedPolicy(self.algorithm, self.env, self.params())

    def _checkpoint_params(self) -> Any:
        """The parameters in a checkpoint."""
        checkpoint, trained = self._chosen_checkpoint, self._saved.trained
        state = jax.eval_shape(lambda key: trained.init(self.env, key), jax.random.key(0))
        source = f"the checkpoint of '{self._saved.path}'"
        params = trained.params(from_arrays(state, checkpoint.arrays, source, trained.rebuildable))
        if self._saved is self or not isinstance(trained, Seeds):
            return params
        return of_seed(params, trained.seeds.index(self.config["seed"]))


def params_of(algorithm: Algorithm, env: Environment) -> Any:
    """The shapes and types of an algorithm's parameters on an environment."""
    return jax.eval_shape(lambda key: algorithm.params(algorithm.init(env, key)), jax.random.key(0))


def load(
    path: str | Path,
    algorithm: Algorithm | None = None,
    env: Any = None,
    checkpoint: str | int | None = None,
) -> Run:
    """Open the run in a directory. Pass the algorithm or the environment if config.json cannot describe it, and the
    checkpoint (best, last or an iteration) for other parameters than the final ones."""
    path = Path(path)
    config = _read(path)
    processors = sum(device.startswith("cpu:") for device in config["devices"])
    if processors > 1:  # before the first array, which fixes the number of devices
        with contextlib.suppress(ConfigError):
            use_cpu_devices(processors)
    algorithm = algorithm or _rebuild_algorithm(config)
    if env is None and config["env_options"] is None:
        wrong = f"run '{path}' was trained on an environment '{config['env']}' that was created in Python"
        raise ConfigError(f"{wrong}: pass it, as in fragmenta.load(path, env=...)")
    environment = make(env) if env is not None else make(config["env"], _options(config))
    algorithm.validate(environment)
    return Run(path, config, algorithm, config["env"], environment, None if checkpoint is None else str(checkpoint))


def cluster_of(run: Run) -> Cluster:
    """The devices and replicas that a run used; ConfigError if this machine lacks them."""
    config, available = run.config, local_cluster().devices
    apart = engine_named(config["engine"]).apart
    missing = [device for device in config["devices"] if device not in available and not apart]
    if missing:
        used = f"'{run.path}' used {', '.join(missing)}, but this machine has only {', '.join(available)}"
        raise ConfigError(f"{used}: use that machine, or resume with a --policy and --replicas that fit this one")
    used = tuple(config["devices"]), config["replicas"], config["lag"], config["max_lag"]
    return Cluster(*used, *replay_settings(config), apart=apart)


def replay_settings(config: dict[str, Any]) -> tuple[str, int, int]:
    """Where the shards of a run's replay are, how many there are, and the number of learners."""
    return config.get("replay", "device"), config.get("shards", 0), config.get("learners", 1)


def describe_algorithm(algorithm: Algorithm) -> dict[str, Any]:
    """The entries of `config.json` for an algorithm: name, hyper-parameters, and those JSON cannot represent."""
    values = {field.name: getattr(algorithm, field.name) for field in dataclasses.fields(algorithm) if field.init}
    unserialisable = [name for name, value in values.items() if not _is_plain(value)]
    return {
        "algorithm": algorithm_name(algorithm),
        "hyper_parameters": {name: value for name, value in values.items() if name not in unserialisable},
        "only_in_python": unserialisable,
    }


def describe_environment(
    requested: Any, env: Environment, options: EnvOptions | None
) -> tuple[str, dict[str, Any] | None]:
    """Name and options from which `make` recreates the environment; None for options if it cannot."""
    if env.host_pool:
        spec, pool = env.host_pool.spec, env.host_pool.options
        if spec.maker:
            return env.title, None
        arguments = json.dumps(spec.arguments)
        host_options = EnvOptions(
            arguments, spec.wrappers, spec.stack, pool.mode, pool.workers, pool.restarts, pool.timeout
        )
        return env.title, dataclasses.asdict(host_options)
    if isinstance(requested, str):
        plain = options or EnvOptions()
        return requested, dataclasses.asdict(EnvOptions(plain.env_args, stack=plain.stack))
    inner, stack = (env.env, env.frames) if isinstance(env, Stack) else (env, 1)
    name = _name_of(inner)
    return (name, dataclasses.asdict(EnvOptions(stack=stack))) if name else (env.title, None)


def _name_of(env: Environment) -> str | None:
    """The name under which `make` creates an equal environment, if there is one."""
    package = type(env).__module__.rpartition(".")[2]
    if package in ADAPTERS and make(name := f"{package}:{getattr(env, 'name', '')}") == env:
        return name
    return next((name for name, maker in {**ENVIRONMENTS, **PROBES}.items() if maker() == env), None)


def _read(path: Path) -> dict[str, Any]:
    config, file = read_config(path), path / "config.json"
    schema = config.get("schema") if isinstance(config, dict) else None
    if schema != SCHEMA:
        written_by = f" (fragmenta {config['version']})" if isinstance(config, dict) and "version" in config else ""
        raise ConfigError(
            f"'{file}' has schema {schema}{written_by}, but this version reads schema {SCHEMA}: "
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
            raise ConfigError(f"'{file}' has no usable '{name}': it was edited by hand, restore it from a backup")
    return config


def _rebuild_algorithm(config: dict[str, Any]) -> Algorithm:
    name = config["algorithm"]
    advice = "pass the algorithm, as in fragmenta.load(path, algorithm=...)"
    if config["only_in_python"]:
        names = ", ".join(config["only_in_python"])
        raise ConfigError(f"hyper-parameters of '{name}' cannot be stored in a file ({names}): {advice}")
    try:
        kind = algorithm_class(name)
    except ConfigError as error:
        raise ConfigError(f"{_one_line(error)}; or {advice}") from None
    try:
        return kind(**{key: _as_tuples(value) for key, value in config["hyper_parameters"].items()})
    except TypeError as error:
        problem = f"'{name}' does not accept the run's hyper-parameters: {_one_line(error)}"
        raise ConfigError(f"{problem}; {advice}") from None


def _options(config: dict[str, Any]) -> EnvOptions:
    try:
        return EnvOptions(**{name: _as_tuples(value) for name, value in config["env_options"].items()})
    except TypeError as error:
        raise ConfigError(f"config.json has env_options that this version does not know: {_one_line(error)}") from None


def _is_plain(value: Any) -> bool:
    """Whether a value survives a round trip through JSON."""
    try:
        return _as_tuples(json.loads(json.dumps(value))) == value
    except (TypeError, ValueError):
        return False


def _as_tuples(value: Any) -> Any:
    """Lists as tuples, because hyper-parameters must be hashable and JSON has only lists."""
    return tuple(_as_tuples(part) for part in value) if isinstance(value, list) else value


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
