"""Names and numbers that more than one process must agree on.

The launcher, the rank's bootstrap and the C++ backend meet only here and in
``jlaunch/backend/src/contract.h``; a test compares the two files.
"""

from __future__ import annotations

import enum
from typing import Final

PROTOCOL_VERSION: Final = 1
"""Version of the control plane's messages; a peer with another one is refused."""

MAX_RANKS: Final = 1024
"""Largest world size: the control block has one loss entry for each rank of the group."""

CONTROL_BLOCK_BYTES: Final = 16384
"""Size of every control block: one page on Apple silicon, four on x86-64."""

ENV_JOB: Final = "JLAUNCH_JOB"
"""Id of the job, also its token: a process that carries it belongs to the job."""
ENV_RANK: Final = "JLAUNCH_RANK"
ENV_LOCAL_RANK: Final = "JLAUNCH_LOCAL_RANK"
ENV_WORLD_SIZE: Final = "JLAUNCH_WORLD_SIZE"
ENV_EPOCH: Final = "JLAUNCH_EPOCH"
"""Epoch in which the rank was started. The group's present epoch is in its control block."""
ENV_RESTART_COUNT: Final = "JLAUNCH_RESTART_COUNT"
ENV_DIR: Final = "JLAUNCH_DIR"
"""The host directory of the job (private to the bootstrap; see ``HostFiles``)."""
ENV_BACKEND: Final = "JLAUNCH_BACKEND"
"""Backend of the job (private to the bootstrap)."""
ENV_DEADLINE_S: Final = "JLAUNCH_DEADLINE_S"
"""``--deadline`` in seconds, a float, ``inf`` for ever (private to the bootstrap)."""
ENV_VERBS: Final = "JLAUNCH_VERBS"
"""``system`` or ``soft``, already resolved from ``auto`` (private to the bootstrap)."""
ENV_SOFT_DIR: Final = "JLAUNCH_SOFT_DIR"
"""Directory in which the soft provider's queue pairs of one epoch meet (read by the provider)."""


class Reason(enum.IntEnum):
    """Why a rank is lost, as in ``PeerLost.reasons``; the name in lower case is what users see."""

    EXITED = 1
    KILLED = 2
    PAUSED = 3
    HOST_LOST = 4
    STUCK = 5
    DESYNC = 6
    INIT_FAILED = 7
    CONTROL_LOST = 8

    @property
    def word(self) -> str:
        """The reason as users read it, for example ``host_lost``."""
        return self.name.lower()


class VerdictKind(enum.IntEnum):
    """What a rank is told in its control block."""

    NONE = 0
    KEEP_WAITING = 1
    RAISE = 2
    STOP = 3


class Collective(enum.IntEnum):
    """MLX's collectives, as numbered in the wire header and the control block."""

    NONE = 0
    ALL_SUM = 1
    ALL_MAX = 2
    ALL_MIN = 3
    ALL_GATHER = 4
    SUM_SCATTER = 5
    SEND = 6
    RECV = 7

    @property
    def word(self) -> str:
        """The collective as MLX names it, for example ``all_sum``."""
        return self.name.lower()


class Phase(enum.IntEnum):
    """How far the process that holds a rank's claim has got; written by the rank."""

    NONE = 0
    CLAIMED = 1
    JOINING = 2
    FORMED = 3
    LEAVING = 4


class ExitCode(enum.IntEnum):
    """Exit codes of jlaunch itself (README); a rank's own code or 128 + signal outranks them."""

    OK = 0
    USAGE = 2
    HOST_LOST = 68
    START_TIMEOUT = 69
    INTERNAL = 70
    UNKILLABLE = 71
    CONTROL_LOST = 72
    FINISHED_EARLY = 73
    STUCK = 74
    PAUSED = 75
    DESYNC = 76
    SIGHUP = 129
    INTERRUPTED = 130
    SIGQUIT = 131
    SIGTERM = 143


class SupervisorFiles:
    """Paths inside the job's directory on the supervisor's host (mode 0700)."""

    AGENTS_SOCKET: Final = "supervisor.ipc"
    """ZeroMQ ROUTER for agents of this host (CURVE)."""
    STATUS_SOCKET: Final = "status.ipc"
    """ZeroMQ ROUTER for ``jlaunch status`` and friends."""
    RECORD: Final = "job.json"
    """Who runs this job: pid, start time, command; the per-user registry is these files."""


class HostFiles:
    """Paths inside a job's host directory, ``<job dir>/h<index>`` (mode 0700)."""

    RANKS_SOCKET: Final = "agent.ipc"
    """ZeroMQ ROUTER for the ranks of this host (private by the directory's mode)."""
    HOST_BLOCK: Final = "host.block"
    """Control block of the agent itself: its heartbeat, its life word, the doorbell."""

    @staticmethod
    def rank_block(rank: int, epoch: int) -> str:
        """Name of the control block of the process started as ``rank`` in ``epoch``."""
        return f"rank-{rank}.e{epoch}.block"

    @staticmethod
    def stack_pipe(rank: int, epoch: int) -> str:
        """Name of the FIFO into which the process started as ``rank`` in ``epoch`` writes its stacks."""
        return f"rank-{rank}.e{epoch}.stack"

    @staticmethod
    def soft_dir(epoch: int) -> str:
        """Name of the directory for the soft provider's files of ``epoch``."""
        return f"soft.e{epoch}"
