"""The job as the user asked for it: frozen, complete, checked once.

Everything here is a value. Parsing flags, hosts files and job files is the door's work
(``jlaunch/cli``); what arrives here is already valid, and nobody checks it again.
Spans are seconds as floats; ``math.inf`` means for ever.
"""

from __future__ import annotations

import enum
import math

import msgspec


class Policy(enum.Enum):
    """``--on-peer-loss``: the user's rule (docs/design.md)."""

    RAISE = "raise"
    WAIT = "wait"
    RESTART = "restart"
    STOP = "stop"
    REPLACE = "replace"
    SHRINK = "shrink"


class Backend(enum.Enum):
    """``--backend``: the collectives' implementation."""

    JACCL = "jaccl"
    JACCL_RING = "jaccl-ring"
    RING = "ring"
    MPI = "mpi"
    NCCL = "nccl"


class Verbs(enum.Enum):
    """``--verbs``: which provider the backend opens."""

    AUTO = "auto"
    SYSTEM = "system"
    SOFT = "soft"


class OutputMode(enum.Enum):
    """``--output``: how the ranks' output is shown."""

    PREFIX = "prefix"
    RAW = "raw"
    RANK0 = "rank0"
    NONE = "none"


class StdinMode(enum.Enum):
    """``--stdin``: who gets the launcher's standard input."""

    ALL = "all"
    RANK0 = "rank0"
    NONE = "none"


class HostSpec(msgspec.Struct, frozen=True):
    """One machine of the hosts file.

    ``rdma`` is the host's row of the device matrix: for each rank of the file ``()`` for none,
    else the device names that lead there.
    """

    name: str
    ips: tuple[str, ...] = ()
    rdma: tuple[tuple[str, ...], ...] = ()
    is_local: bool = True


class Timeouts(msgspec.Struct, frozen=True):
    """Every span of the surface, in seconds; defaults and meaning as in docs/options.md."""

    deadline_s: float = 10.0
    max_pause_s: float = 10.0
    straggler_timeout_s: float = 1800.0
    host_timeout_s: float = 5.0
    restart_backoff_s: float = 1.0
    grace_s: float = 10.0
    start_timeout_s: float = 300.0
    lease_s: float = 180.0


class JobSpec(msgspec.Struct, frozen=True):
    """A job, whole. ``placement[rank]`` is the index of the rank's host in ``hosts``."""

    job: str
    program: tuple[str, ...]
    hosts: tuple[HostSpec, ...]
    placement: tuple[int, ...]
    cwd: str
    env: tuple[tuple[str, str], ...] = ()
    policy: Policy = Policy.RAISE
    backend: Backend = Backend.JACCL
    verbs: Verbs = Verbs.SOFT
    timeouts: Timeouts = Timeouts()
    max_restarts: int = 3
    output: OutputMode = OutputMode.PREFIX
    stdin: StdinMode = StdinMode.ALL
    log_dir: str | None = None
    starting_port: int = 32323
    connections_per_ip: int = 1
    verbose: bool = False

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.placement)

    def ranks_of(self, host: int) -> tuple[int, ...]:
        """Ranks placed on ``host``, in order; the index in this tuple is the local rank."""
        return tuple(rank for rank, where in enumerate(self.placement) if where == host)


FOREVER = math.inf
"""The span that never ends."""
