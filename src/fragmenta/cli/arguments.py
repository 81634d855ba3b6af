"""Read command-line arguments: an algorithm, an environment, and the flags of the command and the algorithm."""

import dataclasses
import itertools
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

from fragmenta.algorithms import ALGORITHMS, Algorithm
from fragmenta.algorithms.named import algorithm_class
from fragmenta.cli.config_file import NAMES, as_arguments, read_config_file
from fragmenta.cli.parsing import field_names, parse
from fragmenta.command import command as command_line
from fragmenta.engines import EngineOptions, engine_named
from fragmenta.engines.hardware import use_cpu_devices
from fragmenta.envs import ENVIRONMENTS, EnvOptions
from fragmenta.errors import ConfigError
from fragmenta.policies import Cluster

Options = TypeVar("Options")
HELP = {"-h", "--help"}
"""The flags that ask for help."""


@dataclasses.dataclass(frozen=True)
class ClusterOptions:
    """The replicas and devices of a distribution policy."""

    replicas: int | None = None
    """Replicas of the replicated fragment, which divide the environments; by default chosen by measuring."""
    cpu_devices: int | None = None
    """CPU devices, one for each replica that communicates; with processes or Ray, how many processes to use."""
    lag: int = 0
    """1: collect the next iteration while the learner works on this one, with parameters one iteration old."""
    max_lag: int | None = None
    """Under asynchronous distribution policies: drop data collected with parameters older than this many versions."""
    replay: str = "device"
    """Where the replay is under the distribution policies replay and replay_async: device, or host (memory)."""
    shards: int | None = None
    """Shards of the replay under the distribution policy replay, which divide the environments; default: replicas."""
    learners: int = 1
    """Replicas of the learner under the distribution policy replay, which divide the batches; each needs a device."""

    def cluster(self, engine: str = "local", options: EngineOptions | None = None) -> Cluster:
        """The devices of this machine, or of an engine's processes, with these options."""
        kind = engine_named(engine)
        if self.cpu_devices is not None and not kind.apart:
            use_cpu_devices(self.cpu_devices)
        if self.replicas is not None and self.replicas < 1:
            raise ConfigError(f"replicas is {self.replicas}: it must be at least 1")
        if self.shards is not None and self.shards < 1:
            raise ConfigError(f"shards is {self.shards}: it must be at least 1")
        settings = self.replicas or 0, self.lag, self.max_lag, self.cpu_devices
        changes = {"replay": self.replay, "shards": self.shards or 0, "learners": self.learners}
        return dataclasses.replace(kind.cluster(options or EngineOptions(), *settings), **changes)


@dataclasses.dataclass(frozen=True)
class EnvFlags(EnvOptions):
    """How an environment is made and, for host environments, how it is stepped."""

    env_args: str = "{}"
    """Constructor arguments of the environment, as JSON: '{"forward_reward_weight": 2.0}'."""


def read(command: str, options: type[Options], arguments: list[str]) -> tuple[Algorithm, str, Options]:
    """Algorithm, environment and options from `ALGORITHM ENVIRONMENT [flags]`; each field of `options` is a group of
    flags. With a flag `config`, a file may give whatever the arguments do not."""
    names = list(itertools.takewhile(lambda argument: not argument.startswith("-"), arguments[:2]))
    words = arguments[len(names) :]
    path = _path_of_config(words) if "config" in field_names(options) else None
    values = read_config_file(path) if path else {}
    names += [str(values[key]) for key in NAMES[len(names) :] if key in values]
    asks_for_help = bool(HELP & set(words))
    if not names and asks_for_help:
        parse(options, ["--help"], f"{command_line(command)} ALGORITHM ENVIRONMENT", _overview(command))
    if not names or (len(names) < 2 and not asks_for_help):
        program = command_line(command)
        raise ConfigError(f"usage: {program} ALGORITHM ENVIRONMENT [flags], as in: {program} ppo CartPole-v1")
    name = names[0]
    if ":" in name and (devices := numbers_of("--cpu-devices", words) or [values.get("cpu_devices")])[0]:
        use_cpu_devices(devices[0])  # before importing the user's module: it may create arrays, which fixes the number
    algorithm = algorithm_class(name)
    if clashes := sorted(field_names(options) & field_names(algorithm)):
        problem = f"'{name}' has a field '{clashes[0]}', and '{command_line(command)}' has a flag of that name"
        raise ConfigError(f"{problem}: rename the field")
    groups = {field.name: field.type for field in dataclasses.fields(options)}  # pyright: ignore[reportArgumentType]
    flags: Any = dataclasses.make_dataclass("Flags", [("hyper_parameters", algorithm), *groups.items()])
    from_file = as_arguments(path, values, flags, words) if path else []
    program = command_line(command, name, *(names[1:] or ["ENVIRONMENT"]))
    parsed = parse(flags, from_file + words, program)
    return parsed.hyper_parameters, names[-1], options(**{name: getattr(parsed, name) for name in groups})


def numbers_of(flag: str, arguments: list[str]) -> list[int]:
    """The numbers given with a flag, for flags that are needed before a user's module is imported."""
    words = " ".join(arguments).replace("=", " ").split()
    after = words[words.index(flag) + 1 :] if flag in words else []
    return [int(word) for word in itertools.takewhile(str.isdigit, after)]


def read_options(command: str, noun: str, options: type[Options], arguments: list[str]) -> tuple[str, Options]:
    """A name and options from `NAME [flags]`, for commands without an algorithm."""
    if not arguments or arguments[0].startswith("-"):
        if HELP & set(arguments):
            parse(options, ["--help"], f"{command_line(command)} {noun}")
        raise ConfigError(f"usage: {command_line(command)} {noun} [flags]")
    return arguments[0], parse(options, arguments[1:], command_line(command, arguments[0]))


def read_flags(command: str, options: type[Options], arguments: list[str]) -> Options:
    """Only options, some of which may be positional."""
    return parse(options, arguments, command_line(command))


def _path_of_config(arguments: list[str]) -> Path | None:
    for position, argument in enumerate(arguments):
        flag, equals, path = argument.partition("=")
        if flag == "--config":
            following = arguments[position + 1 : position + 2]
            if not equals and not following:
                raise ConfigError("--config needs a file: write --config FILE.toml")
            return Path(path if equals else following[0])
    return None


def _overview(command: str) -> str:
    return (
        f"algorithms:    {', '.join(ALGORITHMS)}, or module:Class for your own\n\n"
        f"environments:  {', '.join(ENVIRONMENTS)}, package:name, or module:Class for your own\n\n"
        f"'{command_line(command)} ppo --help' also lists the hyper-parameters of ppo."
    )


PolicyName = Annotated[str, tyro.conf.arg(metavar="NAME|MODULE:FUNCTION")]
