"""The life of a job as a table: its states, the steps between them, who may follow whom.

Rules of this file. A step is what the job machine concluded, as an event of its own; what led to it
(a rank's exit, a silent host, a signal) is in the machine. The last three states are terminal.
"""

from __future__ import annotations

import enum

from jlaunch.core.events import Event


class JobState(enum.Enum):
    """States of a job; the last three are terminal."""

    PREPARING = "preparing"
    FORMING = "forming"
    RUNNING = "running"
    DRAINING = "draining"
    BACKOFF = "backoff"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


class AgentsReady(Event, frozen=True, kw_only=True):
    """Every host's agent is there."""


class GroupOpened(Event, frozen=True, kw_only=True):
    """The ranks of the epoch are a group."""


class EpochFailed(Event, frozen=True, kw_only=True):
    """Something happened after which no rank may run on."""


class EpochEnded(Event, frozen=True, kw_only=True):
    """Every rank is gone and nothing went wrong."""


class JobFailed(Event, frozen=True, kw_only=True):
    """Every rank is gone, something went wrong, and the job does not start again."""


class StopCompleted(Event, frozen=True, kw_only=True):
    """Every rank is gone, as a person asked."""


class RestartDecided(Event, frozen=True, kw_only=True):
    """Every rank is gone, and the job starts again."""


class BackoffOver(Event, frozen=True, kw_only=True):
    """The delay before the next start has passed."""


_S = JobState
TRANSITIONS: dict[tuple[JobState, type[Event]], JobState] = {
    (_S.PREPARING, AgentsReady): _S.FORMING,
    (_S.PREPARING, EpochFailed): _S.DRAINING,
    (_S.FORMING, GroupOpened): _S.RUNNING,
    (_S.FORMING, EpochFailed): _S.DRAINING,
    (_S.FORMING, EpochEnded): _S.SUCCEEDED,
    (_S.FORMING, JobFailed): _S.FAILED,
    (_S.RUNNING, EpochFailed): _S.DRAINING,
    (_S.RUNNING, EpochEnded): _S.SUCCEEDED,
    (_S.RUNNING, JobFailed): _S.FAILED,
    (_S.DRAINING, JobFailed): _S.FAILED,
    (_S.DRAINING, StopCompleted): _S.STOPPED,
    (_S.DRAINING, RestartDecided): _S.BACKOFF,
    (_S.BACKOFF, BackoffOver): _S.PREPARING,
    (_S.BACKOFF, StopCompleted): _S.STOPPED,
}
TERMINAL = (_S.SUCCEEDED, _S.FAILED, _S.STOPPED)
