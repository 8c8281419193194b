"""The control block, seen from the agent (no MLX inside): typed face of ``src/control_bindings.cpp``.

Verdict kinds, reasons, collectives and phases are the numbers of ``core.contract``.
"""

from typing import NamedTuple

class WaitView(NamedTuple):
    """A group slot with a collective in it. Times are CLOCK_MONOTONIC nanoseconds."""

    slot: int
    group: int
    collective: int
    seq: int
    bytes: int
    since_ns: int
    progress_ns: int
    waiting_for: tuple[int, ...]

class RankView(NamedTuple):
    """The rank's half of its block at one moment. ``torn``: read past a frozen writer."""

    owner_pid: int
    owner_alive: bool
    phase: int
    epoch: int
    progress: int
    reports: int
    question: int
    question_slot: int
    in_wait: bool
    completed_seq: int
    desync: tuple[int, int, int, int, int] | None
    waits: tuple[WaitView, ...]
    stack_signal: int
    torn: bool

class RankBlock:
    """One rank's control block, created by its agent (mode 0600; the space is really allocated)."""

    @staticmethod
    def create(path: str, rank: int, epoch: int) -> RankBlock: ...
    @staticmethod
    def open(path: str) -> RankBlock: ...
    def read(self) -> RankView: ...
    def write_verdict(
        self,
        verdict: int,
        kind: int,
        losses: list[tuple[int, int, int, bool]],
        answered: int = 0,
    ) -> None:
        """Write a verdict and ring the bell. Each loss: rank, reason, completed_seq, clean.

        ``kind`` KEEP_WAITING only raises ``answered`` and leaves a standing RAISE or STOP in force.
        """
    def close(self) -> None: ...

class HostBlock:
    """The agent's own block."""

    @staticmethod
    def create(path: str, lease_s: float, grace_s: float) -> HostBlock: ...
    @staticmethod
    def open(path: str) -> HostBlock: ...
    def beat(self) -> None: ...
    @property
    def agent_pid(self) -> int: ...
    @property
    def agent_alive(self) -> bool: ...
    def close(self) -> None: ...

class Watch:
    """One native thread of the agent that sleeps on every rank's life word and on the doorbell.

    It also holds the agent's own life word. ``fileno`` becomes readable when something happened;
    ``take`` drains it and returns the keys whose holder died (in order of time) and whether the
    doorbell rang. A key is reported once per claim. On systems without robust futexes only the
    doorbell works, and deaths come from the process port.
    """

    def __init__(self, host: HostBlock) -> None: ...
    def fileno(self) -> int: ...
    def add(self, key: int, block: RankBlock) -> None: ...
    def remove(self, key: int) -> None: ...
    def take(self) -> tuple[list[int], bool]: ...
    def close(self) -> None: ...

def monotonic_ns() -> int:
    """The clock of the control block."""
