"""Whether the program can be started at all: looked at before anything is.

Paths are those of this machine: the ranks of remote hosts are looked at by their agents.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence

from jlaunch.core.errors import ConfigError


def check_cwd(cwd: str) -> str:
    """The absolute path of ``--cwd``. Raises ConfigError if it is no directory that can be entered."""
    path = os.path.abspath(cwd)
    if not os.path.isdir(path):
        found = "a file" if os.path.exists(path) else "nothing"
        raise ConfigError(f"--cwd {cwd}: found {found}, expected a directory")
    if not os.access(path, os.X_OK):
        raise ConfigError(f"--cwd {cwd}: found a directory that may not be entered, expected one that may")
    return path


def check_python(python: str, *, cwd: str, environ: Mapping[str, str]) -> None:
    """Raise ConfigError if ``--python`` names nothing that the ranks could execute from ``cwd``."""
    path = os.path.join(cwd, python) if "/" in python else python
    if not python or shutil.which(path, path=environ.get("PATH", os.defpath)) is None:
        raise ConfigError(f"--python {python}: found no such executable, expected a Python interpreter")


def check_program(command: Sequence[str], *, cwd: str, has_python: bool, environ: Mapping[str, str]) -> None:
    """Raise ConfigError if the program cannot be started from ``cwd`` with the ranks' ``environ``.

    A ``.py`` file is run by a Python and only has to be readable; so is every program that ``--python`` is
    put in front of, unless its first word is an option of Python (``-m``, ``-c``).
    """
    program = command[0]
    if "\0" in "".join(command):
        raise ConfigError("PROGRAM: found a NUL byte in its arguments, expected none")
    if program.endswith(".py") or (has_python and not program.startswith("-")):
        _check_script(program, os.path.join(cwd, program))
    elif not has_python:
        _check_executable(program, cwd, environ.get("PATH", os.defpath))


def _check_script(program: str, path: str) -> None:
    if not os.path.exists(path):
        raise ConfigError(
            f"{program}: found no such file in {os.path.dirname(path) or '/'}, expected the program"
        )
    if not os.path.isfile(path) and not _is_runnable_folder(path):
        raise ConfigError(f"{program}: found a directory, expected the program")
    if not os.access(path, os.R_OK):
        raise ConfigError(f"{program}: found a file that may not be read, expected the program")


def _is_runnable_folder(path: str) -> bool:
    """Python runs a folder that holds a ``__main__.py``."""
    return os.path.isfile(os.path.join(path, "__main__.py"))


def _check_executable(program: str, cwd: str, search: str) -> None:
    if not program:
        raise ConfigError("PROGRAM: found an empty word, expected a .py file or a command")
    if "/" not in program:
        if shutil.which(program, path=search) is None:
            hint = (
                f"; to run the file here, write ./{program}"
                if os.path.isfile(os.path.join(cwd, program))
                else ""
            )
            raise ConfigError(
                f"{program}: found no such command on PATH, expected a .py file or a command{hint}"
            )
        return
    path = os.path.join(cwd, program)
    if not os.path.exists(path):
        raise ConfigError(f"{program}: found no such file in {cwd}, expected the program")
    if os.path.isdir(path):
        raise ConfigError(f"{program}: found a directory, expected the program")
    if not os.access(path, os.X_OK):
        raise ConfigError(f"{program}: found a file that is not executable, expected the program (chmod +x?)")


def check_log_dir(path: str) -> str:
    """Make ``--log-dir`` if need be; its absolute path. Raises ConfigError if it cannot be written."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--log-dir {path}: cannot be made: {error.strerror}") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError(
            f"--log-dir {path}: found a directory that may not be written, expected one that may"
        )
    return os.path.abspath(path)


def check_events(path: str) -> str:
    """The absolute path of ``--events``. Raises ConfigError if nothing can be written there."""
    try:
        # Not blocking, so that a FIFO without a reader is no trap; it counts as writable.
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o644)
    except OSError as error:
        if not os.path.exists(path) or os.path.isdir(path) or not os.access(path, os.W_OK):
            raise ConfigError(f"--events {path}: cannot be written: {error.strerror}") from error
    else:
        os.close(fd)
    return os.path.abspath(path)
