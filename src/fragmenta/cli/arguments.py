"""Parse command-line arguments: an algorithm, an environment, and the flags of the command and the algorithm."""

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
from fragmenta.command import command as command_line
from fragmenta.engines import EngineOptions, engine_named
from fragmenta.engines.hardware import use_cpu_devices
from fragmenta.envs import ENVIRONMENTS
from fragmenta.errors import ConfigError
from fragmenta.policies import Cluster

Options = TypeVar("Options")


@dataclasses.dataclass(frozen=True)
class ClusterOptions:
    """The replicas and devices of a distribution policy."""

    replicas: int | None = None
    """Replicas of the policy's replicated fragment; environments (or agents) are divided among them. Default: one, or
    two for slow environments on the host."""
    cpu_devices: int | None = None
    """Number of CPU devices; a replica that communicates with others needs its own. With processes or Ray, the number
    of processes to spread fragments over (default: one per core)."""
    lag: int = 0
    """1: collect the next iteration while the learner works on this one, with parameters one iteration old."""
    max_lag: int | None = None
    """Under an asynchronous policy: drop data collected with parameters more than this many versions old."""

    def cluster(self, engine: str = "local", options: EngineOptions | None = None) -> Cluster:
        """The devices of this machine, or of an engine's processes, with these options."""
        kind = engine_named(engine)
        if self.cpu_devices is not None and not kind.apart:
            use_cpu_devices(self.cpu_devices)
        if self.replicas is not None and self.replicas < 1:
            raise ConfigError(f"replicas is {self.replicas}: it must be at least 1")
        settings = self.replicas or 0, self.lag, self.max_lag, self.cpu_devices
        return kind.cluster(options or EngineOptions(), *settings)


def read(command: str, options: type[Options], arguments: list[str]) -> tuple[Algorithm, str, Options]:
    """Algorithm, environment and options from `ALGORITHM ENVIRONMENT [flags]`."""
    positional = [a for a in arguments[:2] if not a.startswith("-")]
    asks_for_help = {"-h", "--help"} & set(arguments)
    if not positional and asks_for_help:
        print(_usage(command))
        raise SystemExit(0)
    if not positional or (len(positional) < 2 and not asks_for_help):
        raise ConfigError(
            f"usage: {command_line(command)} ALGORITHM ENVIRONMENT [flags], as in: fragmenta {command} ppo CartPole-v1"
        )
    name = positional[0]
    if ":" in name and (devices := numbers_of("--cpu-devices", arguments)):
        use_cpu_devices(devices[0])  # before importing the user's module: it may create arrays, which fixes the number
    algorithm = algorithm_class(name)
    if clashes := sorted(_field_names(options) & _field_names(algorithm)):
        problem = f"'{name}' has a field '{clashes[0]}', and '{command_line(command)}' has a flag of that name"
        raise ConfigError(f"{problem}: rename the field")
    program = command_line(command, *positional)
    flags = _parse({"options": options, "algorithm": algorithm}, arguments[len(positional) :], program)
    return flags.algorithm, positional[-1], flags.options


def numbers_of(flag: str, arguments: list[str]) -> list[int]:
    """The numbers given with a flag, for flags that are needed before a user's module is imported."""
    words = " ".join(arguments).replace("=", " ").split()
    after = words[words.index(flag) + 1 :] if flag in words else []
    return [int(word) for word in itertools.takewhile(str.isdigit, after)]


def read_options(command: str, noun: str, options: type[Options], arguments: list[str]) -> tuple[str, Options]:
    """A name and options from `NAME [flags]`, for commands without an algorithm."""
    if not arguments or arguments[0].startswith("-"):
        usage = f"usage: {command_line(command)} {noun} [flags]"
        if {"-h", "--help"} & set(arguments):
            print(usage)
            raise SystemExit(0)
        raise ConfigError(usage)
    flags = _parse({"options": options}, arguments[1:], command_line(command, arguments[0]))
    return arguments[0], flags.options


def read_flags(command: str, options: type[Options], arguments: list[str]) -> Options:
    """Only options, some of which may be positional."""
    return _parse({"options": options}, arguments, command_line(command)).options


def _parse(groups: dict[str, type], arguments: list[str], program: str) -> Any:
    """Parse the fields of these classes as flags with tyro; its error output becomes a one-line ConfigError."""
    flags = dataclasses.make_dataclass(
        "Flags", [(name, tyro.conf.OmitArgPrefixes[group]) for name, group in groups.items()]
    )
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            return tyro.cli(flags, args=arguments, prog=program, config=(tyro.conf.FlagCreatePairsOff,))
    except SystemExit as stop:
        if not stop.code:
            raise
    known = {name for group in groups.values() for name in _flag_names(group)}
    for argument in arguments:
        name = argument.partition("=")[0]
        if name.startswith("--") and name not in known and name != "--help":
            matches = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
            hint = f"did you mean {matches[0]}? " if matches else ""
            raise ConfigError(f"unknown flag '{name}': {hint}'{program} --help' lists all flags")
    text = re.sub(r"\x1b\[[0-9;]*m|[╭╮╰╯│─]+", " ", stderr.getvalue())
    text = re.sub(r"\s+", " ", text).strip().removeprefix("Parsing error").partition("For full helptext")[0]
    raise ConfigError(text.strip())


def _flag_names(group: type) -> set[str]:
    names: set[str] = set()
    for field in dataclasses.fields(group):
        name = field.name.replace("_", "-")
        # A string if the user's module postpones the evaluation of annotations.
        names |= {f"--{name}", f"--no-{name}"} if field.type in (bool, "bool") else {f"--{name}"}
    return names


def _field_names(group: type) -> set[str]:
    return {field.name for field in dataclasses.fields(group) if field.init}


def _usage(command: str) -> str:
    return (
        f"usage: {command_line(command)} ALGORITHM ENVIRONMENT [flags]\n"
        f"  algorithms:   {', '.join(ALGORITHMS)}, or module:Class for your own\n"
        f"  environments: {', '.join(ENVIRONMENTS)}\n"
        f"'{command_line(command)} ALGORITHM --help' lists the flags."
    )


PolicyName = Annotated[str, tyro.conf.arg(metavar="NAME|MODULE:FUNCTION")]
