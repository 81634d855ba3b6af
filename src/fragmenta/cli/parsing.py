"""Parse the fields of dataclasses as flags with tyro; a mistake becomes a ConfigError of one line."""

import contextlib
import dataclasses
import io
import re
from collections.abc import Iterable
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from fragmenta.errors import ConfigError, closest

Parsed = TypeVar("Parsed")
_registry = ConstructorRegistry()


def parse(flags: type[Parsed], arguments: list[str], program: str, description: str | None = None) -> Parsed:
    """The flags in the arguments; a field of `flags` that is a dataclass is a group of flags in the help."""
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            return tyro.cli(
                flags,
                args=arguments,
                prog=program,
                description=description,
                registry=_registry,
                config=(tyro.conf.OmitArgPrefixes,),
            )
    except SystemExit as stop:
        if not stop.code:
            raise
    known = flag_names(flags)
    for argument in arguments:
        name = argument.partition("=")[0]
        if name.startswith("--") and name not in known and name != "--help":
            match = closest(name.removeprefix("--"), (flag.removeprefix("--") for flag in known))
            hint = f"did you mean --{match}? " if match else ""
            raise ConfigError(f"unknown flag '{name}': {hint}'{program} --help' lists all flags")
    raise ConfigError(_one_line(stderr.getvalue()))


def flag_names(flags: type) -> set[str]:
    """The names of all flags of a dataclass and its groups."""
    names: set[str] = set()
    for field in _fields(flags):
        name = field.name.replace("_", "-")
        names |= {f"--{name}", f"--no-{name}"} if is_switch(field) else {f"--{name}"}
    return names


def field_names(flags: type) -> set[str]:
    """The names of the fields that are flags."""
    return {field.name for field in _fields(flags)}


def is_switch(field: dataclasses.Field) -> bool:
    """Whether a field is given as `--name` or `--no-name`, without a value."""
    return field.type in (bool, "bool")  # a string if the user's module postpones the evaluation of annotations


def whole_number(text: str) -> int:
    """The integer that a text stands for; `1e6` is one."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        number = 0.5
    if not number.is_integer():
        raise ValueError(f"'{text}' is not a whole number")
    return int(number)


def number(text: str) -> float:
    """The number that a text stands for."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"'{text}' is not a number") from None


VALUES: dict[Any, tuple[str, Any]] = {
    Any: ("MODULE:NAME", str),
    int: ("INT", whole_number),
    float: ("FLOAT", number),
    str: ("STR", str),
    Path: ("PATH", Path),
}
"""How the values of flags are shown and read, by type."""


@_registry.primitive_rule
def _value(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """One value, or also none, which the help does not show: such a default is worked out later."""
    is_union = get_origin(info.type) in (Union, UnionType)
    parts = get_args(info.type) if is_union else (info.type,)
    types = [get_args(part)[0] if get_origin(part) is Annotated else part for part in parts]
    kinds = [kind for kind in types if kind is not type(None)]
    if len(kinds) != 1 or kinds[0] not in VALUES:
        return None
    metavar, read = VALUES[kinds[0]]
    accepted = {float: (float, int), Any: object}.get(kinds[0], kinds[0])
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda texts: None if is_union and texts[0] == "None" else read(texts[0]),
        is_instance=lambda value: isinstance(value, accepted) or (is_union and value is None),
        str_from_instance=lambda value: [str(value)],
    )


def _unread(match: re.Match[str]) -> str:
    hint = ": separate values by spaces, not by commas" if re.search(r"\w,\w", match[1]) else ""
    return f"cannot read {match[1]}{hint}"


def _fields(flags: type) -> Iterable[dataclasses.Field]:
    for field in dataclasses.fields(flags):
        if dataclasses.is_dataclass(field.type) and isinstance(field.type, type):
            yield from _fields(field.type)
        elif field.init:
            yield field


def _one_line(text: str) -> str:
    text = re.sub(r"\x1b\[[0-9;]*m|[╭╮╰╯│─]+|-{3,}", " ", text)  # frames, in Unicode or ASCII
    text = re.sub(r"\s+", " ", text).strip()
    text = re.sub(r"^(Parsing error|Value error|Unrecognized options(?= Unrec))|For full helptext.*", "", text).strip()
    text = re.sub(r"Could not find valid parse for arguments: \[([^]]*)\]+", _unread, text)
    # The help of the flag says nothing more, but for a flag that is missing it is all there is.
    return text if "(required)" in text else text.partition(" Argument helptext:")[0]
