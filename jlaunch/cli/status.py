"""``jlaunch status``: which job, then its snapshot, as a table or as JSON."""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Sequence

import click
import msgspec

from jlaunch.core.errors import JlaunchError
from jlaunch.core.snapshot import Snapshot
from jlaunch.io.jobs import JobEntry, live_jobs
from jlaunch.runtime.status_server import ask_status
from jlaunch.view import units
from jlaunch.view.status import render_jobs, render_status

NO_SUCH_JOB = 1
"""Exit code when there is nothing to show; 2 is kept for bad input."""


def show_status(job: str | None, *, as_json: bool) -> int:
    """Print the job whose id begins with ``job``; without it the only one, or a list of all.

    Returns the exit code: 0, or 1 when no such job runs or its supervisor does not answer.
    """
    jobs = [entry for entry in live_jobs() if job is None or entry.record.job.startswith(job)]
    if not jobs:
        return _nothing(job, as_json=as_json)
    if len(jobs) > 1:
        _print_jobs(jobs, as_json=as_json)
        return 0
    try:
        snapshot = ask_status(jobs[0].path)
    except JlaunchError as error:
        click.echo(f"jlaunch: job {jobs[0].record.job}: {error}", err=True)
        return NO_SUCH_JOB
    if as_json:
        click.echo(json.dumps(snapshot))
    else:
        size = shutil.get_terminal_size()
        view = msgspec.convert(snapshot, Snapshot)
        click.echo(render_status(view, columns=size.columns, lines=size.lines), nl=False)
    return 0


def _nothing(job: str | None, *, as_json: bool) -> int:
    if as_json:
        click.echo("[]")
    which = "no job is running" if job is None else f"no job that begins with {job!r} is running"
    click.echo(f"jlaunch: {which}", err=True)
    return NO_SUCH_JOB


def _print_jobs(jobs: Sequence[JobEntry], *, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode([entry.record for entry in jobs]))
        return
    now = time.time()
    rows = [
        (r.job, r.pid, r.world_size, units.span(max(now - r.started_at, 0.0)), shlex.join(r.command))
        for r in (entry.record for entry in jobs)
    ]
    click.echo(render_jobs(rows, columns=shutil.get_terminal_size().columns), nl=False)
