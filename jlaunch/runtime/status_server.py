"""Snapshots of a running job, asked for over ``status.ipc``."""

from __future__ import annotations


def ask_status(job_dir: str, timeout_s: float = 2.0) -> dict[str, object]:
    """The snapshot of the job in ``job_dir`` as plain values (the client of ``jlaunch status``).

    Raises StatusError (a JlaunchError) when the supervisor does not answer within ``timeout_s``.
    """
    raise NotImplementedError((job_dir, timeout_s))
