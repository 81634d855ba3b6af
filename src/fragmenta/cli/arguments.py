"""Read the arguments that `train` and `graph` share: an algorithm, an environment, and the flags of both."""

import contextlib
import dataclasses
import difflib
import io
import itertools
import re
from typing import Annotated, Any, TypeVar

import tyro

from fragmenta.algorithms import ALGORITHMS, Algorithm
from fragmenta.algorithms.named import algorithm_class
from fragmenta.engines import ENGINES, EngineOptions
from fragmenta.engines.hardware import engine_cluster, use_cpu_devices
from fragmenta.envs import ENVIRONMENTS
from fragmenta.errors import ConfigError, unknown
from fragmenta.policies import Cluster

Options = TypeVar("Options")


@dataclasses.dataclass(frozen=True)
class ClusterOptions:
    """How often and on what a policy's fragments run."""

    replicas: int | None = None
    """How often the policy's replicated fragment runs; environments (or agents) are divided among the replicas.
    By default once, or twice for environments on the host that take their time."""
    cpu_devices: int | None = None
    """As how many devices the processor counts; a replica that talks to others needs one of its own. With processes
    or Ray, how many processes fragments are spread over; by default one for each core."""
    lag: int = 0
    """1: collect the next iteration while the learner works on this one, with parameters one iteration old."""
    max_lag: int | None = None
    """Under an asynchronous policy: drop what was made with parameters more than so many versions old."""

    def cluster(self, engine: str = "local", options: EngineOptions | None = None) -> Cluster:
        """The devices of this machine, or of an engine's processes, used this way."""
        if engine not in ENGINES:
            raise unknown("engine", engine, ENGINES)
        if self.cpu_devices is not None and engine == "local":
            use_cpu_devices(self.cpu_devices)
        if self.replicas is not None and self.replicas < 1:
            raise ConfigError(f"replicas is {self.replicas}: it must be at least 1")
        how = self.replicas or 0, self.lag, self.max_lag, self.cpu_devices
        return engine_cluster(engine, options or EngineOptions(), *how)


def read(command: str, options: type[Options], arguments: list[str]) -> tuple[Algorithm, str, Options]:
    """Algorithm, environment and options from `ALGORITHM ENVIRONMENT [flags]`."""
    positional = [a for a in arguments[:2] if not a.startswith("-")]
    asks_for_help = {"-h", "--help"} & set(arguments)
    if not positional and asks_for_help:
        print(_usage(command))
        raise SystemExit(0)
    if not positional or (len(positional) < 2 and not asks_for_help):
        raise ConfigError(
            f"usage: fragmenta {command} ALGORITHM ENVIRONMENT [flags], as in: fragmenta {command} ppo CartPole-v1"
        )
    name = positional[0]
    if ":" in name and (devices := numbers_of("--cpu-devices", arguments)):
        use_cpu_devices(devices[0])  # before the user's module is imported: it may make arrays, which fixes the number
    algorithm = algorithm_class(name)
    if taken := sorted(_field_names(options) & _field_names(algorithm)):
        same = f"'{name}' has a field '{taken[0]}', and 'fragmenta {command}' has a flag of that name"
        raise ConfigError(f"{same}: give the field another name")
    program = f"fragmenta {command} {' '.join(positional)}"
    flags = _parse({"options": options, "algorithm": algorithm}, arguments[len(positional) :], program)
    return flags.algorithm, positional[-1], flags.options


def numbers_of(flag: str, arguments: list[str]) -> list[int]:
    """The numbers given with a flag, for what must be known before a user's module is imported."""
    words = " ".join(arguments).replace("=", " ").split()
    after = words[words.index(flag) + 1 :] if flag in words else []
    return [int(word) for word in itertools.takewhile(str.isdigit, after)]


def read_options(command: str, noun: str, options: type[Options], arguments: list[str]) -> tuple[str, Options]:
    """A name and options from `NAME [flags]`, for commands that need no algorithm."""
    if not arguments or arguments[0].startswith("-"):
        usage = f"usage: fragmenta {command} {noun} [flags]"
        if {"-h", "--help"} & set(arguments):
            print(usage)
            raise SystemExit(0)
        raise ConfigError(usage)
    flags = _parse({"options": options}, arguments[1:], f"fragmenta {command} {arguments[0]}")
    return arguments[0], flags.options


def read_flags(command: str, options: type[Options], arguments: list[str]) -> Options:
    """Options alone, some of which may be positional."""
    return _parse({"options": options}, arguments, f"fragmenta {command}").options


def _parse(groups: dict[str, type], arguments: list[str], program: str) -> Any:
    """Parse with tyro the fields of these classes as flags; whatever it prints about a mistake becomes one line."""
    flags = dataclasses.make_dataclass(
        "Flags", [(name, tyro.conf.OmitArgPrefixes[group]) for name, group in groups.items()]
    )
    noise = io.StringIO()
    try:
        with contextlib.redirect_stderr(noise):
            return tyro.cli(flags, args=arguments, prog=program, config=(tyro.conf.FlagCreatePairsOff,))
    except SystemExit as stop:
        if not stop.code:
            raise
    known = {name for group in groups.values() for name in _flag_names(group)}
    for argument in arguments:
        name = argument.partition("=")[0]
        if name.startswith("--") and name not in known and name != "--help":
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ConfigError(f"unknown flag '{name}': {hint}'{program} --help' lists all")
    text = re.sub(r"\x1b\[[0-9;]*m|[╭╮╰╯│─]+", " ", noise.getvalue())
    text = re.sub(r"\s+", " ", text).strip().removeprefix("Parsing error").partition("For full helptext")[0]
    raise ConfigError(text.strip())


def _flag_names(group: type) -> set[str]:
    names: set[str] = set()
    for field in dataclasses.fields(group):
        name = field.name.replace("_", "-")
        # As text where the module of a user's class postpones annotations.
        names |= {f"--{name}", f"--no-{name}"} if field.type in (bool, "bool") else {f"--{name}"}
    return names


def _field_names(group: type) -> set[str]:
    return {field.name for field in dataclasses.fields(group) if field.init}


def _usage(command: str) -> str:
    return (
        f"usage: fragmenta {command} ALGORITHM ENVIRONMENT [flags]\n"
        f"  algorithms:   {', '.join(ALGORITHMS)}, or module:Class for one of your own\n"
        f"  environments: {', '.join(ENVIRONMENTS)}\n"
        f"'fragmenta {command} ALGORITHM --help' lists the flags."
    )


PolicyName = Annotated[str, tyro.conf.arg(metavar="NAME|MODULE:FUNCTION")]
