"""Configuration files: flags and their values as TOML."""

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any

from fragmenta.algorithms import Algorithm
from fragmenta.algorithms.named import algorithm_name
from fragmenta.cli.parsing import field_names, flag_names
from fragmenta.errors import ConfigError, closest

NAMES = ("algorithm", "environment")
"""Keys in place of the two positional arguments."""
OWN_FLAGS = ("config", "print_config")
"""Flags about the configuration file, which are not in it."""


def read_config_file(path: Path) -> dict[str, Any]:
    """The keys and values of a configuration file."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read config '{path}': {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config '{path}' is not TOML: {error}") from None


def as_arguments(path: Path, values: dict[str, Any], flags: type, words: list[str]) -> list[str]:
    """The values of a configuration file as command-line arguments, without flags that `words` already has."""
    known, keys = flag_names(flags), field_names(flags) - set(OWN_FLAGS)
    overridden = {argument.partition("=")[0].replace("--no-", "--", 1) for argument in words}
    arguments = []
    for key, value in values.items():
        flag = f"--{key.replace('_', '-')}"
        if key in NAMES:
            continue
        if key not in keys:
            match = closest(key, keys)
            hint = f"did you mean '{match}'? " if match else ""
            raise ConfigError(f"unknown key '{key}' in config '{path}': {hint}--print-config shows all keys")
        is_switch = f"--no-{key.replace('_', '-')}" in known
        if is_switch != isinstance(value, bool) or isinstance(value, dict):
            expected = "true or false" if is_switch else "a value as on the command line"
            raise ConfigError(f"{key} is {json.dumps(value, default=str)} in config '{path}': expected {expected}")
        if flag in overridden:
            continue
        if is_switch:
            arguments.append(flag if value else f"--no-{flag.removeprefix('--')}")
        elif isinstance(value, list):
            arguments += [flag, *map(str, value)]
        else:
            arguments.append(f"{flag}={value}")
    return arguments


def config_text(algorithm: Algorithm, env: str, options: Any) -> str:
    """The effective configuration as TOML, for `--config`; a flag without a value is a comment."""
    lines = [f"algorithm = {_value(algorithm_name(algorithm))}", f"environment = {_value(env)}"]
    groups = {"hyper_parameters": algorithm, **vars(options)}
    for title, group in groups.items():
        lines += ["", f"# {title.replace('_', '-')}"]
        for field in dataclasses.fields(group):
            if not field.init or field.name in OWN_FLAGS:
                continue
            value = getattr(group, field.name)
            lines.append(f"# {field.name} =" if value is None else f"{field.name} = {_value(value)}")
    return "\n".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False)
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_value, value))}]"
    raise ConfigError(f"cannot print {value!r} as TOML: a configuration has numbers, strings and lists of these")
