"""``jlaunch replay``: a recorded run, decided once more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from jlaunch.core.errors import ConfigError
from jlaunch.core.replay import ReplayError, replay
from jlaunch.view.replay import replay_lines


def show_replay(path: str) -> int:
    """Print the decisions of every job in the log; 1 if one differs from what is recorded.

    Raises ConfigError for a file that is no event log.
    """
    try:
        jobs = replay(_lines(path))
    except ReplayError as error:
        raise ConfigError(f"{path}: {error}") from error
    for job in jobs:
        for line in replay_lines(job):
            click.echo(line)
    return int(any(job.first_difference is not None for job in jobs))


def _lines(path: str) -> list[dict[str, Any]]:
    decoder = msgspec.json.Decoder(dict[str, Any])
    lines = []
    try:
        for number, line in enumerate(Path(path).read_bytes().splitlines(), start=1):
            try:
                lines.append(decoder.decode(line))
            except msgspec.DecodeError as error:
                raise ConfigError(f"{path}: line {number}: found no JSON object: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    return lines
