"""`fragmenta completion`: print a script that completes commands, names and flags in a shell."""

import dataclasses
import functools
import importlib
import operator
from typing import Annotated, Any, Literal

import tyro

from fragmenta.algorithms import ALGORITHMS
from fragmenta.cli.arguments import read_flags
from fragmenta.policies import POLICIES

WITH_ALGORITHM = {
    "sweep": "SweepOptions",
    "train": "TrainOptions",
    "graph": "GraphOptions",
    "verify": "VerifyOptions",
    "plan": "PlanOptions",
    "policies": "PoliciesOptions",
}
"""Commands that take an algorithm and an environment, and the class of their flags."""
WITH_FLAGS = {
    "zoo": "ZooOptions",
    "resume": "ResumeOptions",
    "runs": "RunsOptions",
    "eval": "EvalOptions",
    "play": "PlayOptions",
    "compare": "CompareOptions",
    "report": "ReportOptions",
    "export": "ExportOptions",
    "trace": "TraceOptions",
    "check-env": "CheckOptions",
    "doctor": "DoctorOptions",
    "completion": "CompletionOptions",
}
"""The other commands, and the class of their flags."""


@dataclasses.dataclass(frozen=True)
class CompletionOptions:
    """Print a script for your shell, as in: eval "$(fragmenta completion bash)"."""

    shell: tyro.conf.Positional[Literal["bash", "zsh"]]
    """The shell to write the script for."""


def run(arguments: list[str]) -> int:
    """Print the script."""
    options = read_flags("completion", CompletionOptions, arguments)
    tyro.cli(
        _tree(),
        prog="fragmenta",
        args=["--tyro-write-completion", options.shell, "-"],
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
    )
    return 0


def _tree() -> Any:
    """All commands with their flags as one type, as tyro sees a program with subcommands."""
    commands: list[Any] = []
    for command, name in WITH_ALGORITHM.items():
        by_algorithm = [
            Annotated[
                dataclasses.make_dataclass(
                    f"{command}_{title}",
                    [
                        ("environment", tyro.conf.Positional[str]),
                        ("hyper_parameters", algorithm),
                        ("options", _options(command, name)),
                    ],
                ),
                tyro.conf.subcommand(title),
            ]
            for title, algorithm in ALGORITHMS.items()
        ]
        kind = dataclasses.make_dataclass(command, [("algorithm", functools.reduce(operator.or_, by_algorithm))])
        commands.append(Annotated[kind, tyro.conf.subcommand(command)])
    for command, name in WITH_FLAGS.items():
        commands.append(Annotated[_options(command, name), tyro.conf.subcommand(command)])
    return functools.reduce(operator.or_, commands)


def _options(command: str, name: str) -> type:
    return _with_policies(getattr(importlib.import_module(f"fragmenta.cli.{command.replace('-', '_')}"), name))


def _with_policies(flags: type) -> type:
    """The flags, with the built-in distribution policies as choices; a script cannot know the user's own."""
    changed: list[Any] = []
    for field in dataclasses.fields(flags):
        if field.name == "policy":
            policy: Any = Literal[*POLICIES]
            several, optional = isinstance(field.default, tuple), field.default is None
            kind = tuple[policy, ...] if several else policy | None if optional else policy
            changed.append((field.name, kind, dataclasses.field(default=field.default)))
        elif isinstance(field.type, type) and dataclasses.is_dataclass(field.type):
            group = _with_policies(field.type)
            changed += [(field.name, group)] if group is not field.type else []
    return dataclasses.make_dataclass(flags.__name__, changed, bases=(flags,), frozen=True) if changed else flags
