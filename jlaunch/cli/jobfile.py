"""``--config FILE``: a TOML job file. Its keys are the options' long names; flags win.

``env`` may be a table, ``program`` (a list of words) stands for PROGRAM and its arguments. Paths mean what
they mean on the command line: relative to where jlaunch is started.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from jlaunch.core.errors import ConfigError

PROGRAM_KEY = "program"
_NOT_IN_A_FILE = ("config", "print_python", "help")


def read_job_file(path: str, command: click.Command) -> dict[str, Any]:
    """The file's values as defaults for ``command``, by parameter name, checked as flags are.

    Raises ConfigError, one line that names the file, the key, what was found and what was expected.
    """
    data = _load(path)
    options = _options(command)
    defaults: dict[str, Any] = {}
    for key, value in data.items():
        if key == PROGRAM_KEY:
            defaults["command"] = _words(path, key, value)
        elif key in options:
            defaults[str(options[key].name)] = _value(path, key, value, options[key])
        else:
            hint = f" (did you mean {key.replace('_', '-')}?)" if key.replace("_", "-") in options else ""
            raise ConfigError(f"{path}: {key}: found an unknown key, expected an option of jlaunch run{hint}")
    return defaults


def _load(path: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the job file: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: found {_one_line(error)!r}, expected a job file in TOML") from error


def _options(command: click.Command) -> dict[str, click.Option]:
    """The command's options by their long names, without those that only make sense on a command line."""
    return {
        name[2:]: param
        for param in command.params
        if isinstance(param, click.Option) and param.name not in _NOT_IN_A_FILE
        for name in param.opts
        if name.startswith("--")
    }


def _value(path: str, key: str, value: object, option: click.Option) -> Any:
    if option.is_flag and isinstance(option.type, click.types.BoolParamType):
        if not isinstance(value, bool):
            raise ConfigError(f"{path}: {key}: found {value!r}, expected true or false")
        return value
    if key == "env" and isinstance(value, dict):
        return [f"{name}={_scalar(path, f'{key}.{name}', item)}" for name, item in value.items()]
    if option.multiple:
        return list(_words(path, key, value))
    if key == "hosts" and isinstance(value, list):
        return ",".join(_words(path, key, value))
    try:
        return option.type.convert(_scalar(path, key, value), option, None)
    except click.BadParameter as error:
        raise ConfigError(f"{path}: {key}: {error.message}") from error


def _scalar(path: str, key: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ConfigError(f"{path}: {key}: found {value!r}, expected a string or a number")
    return str(value)


def _words(path: str, key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise ConfigError(f"{path}: {key}: found {value!r}, expected a list of strings")
    return tuple(value)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
