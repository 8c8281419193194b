"""Whom to blame: one root cause, one exit code, one line for people.

Rules of this file. A cause is recorded when it is seen, unless it is known to be a consequence (of a
verdict that the rank was told, of a stop that was ordered): that is judged by who records it
(``core.epoch``). Of what is recorded the first wins, with two exceptions. SIGKILL is never a
consequence of a peer's loss (it comes from outside: the out-of-memory killer, a person), while a
rank that runs another backend may notice its peer's death before we do; so a SIGKILL outranks an exit
that was seen within ``CAUSE_WINDOW_S`` before it. And a process that cannot be killed decides the
exit code whatever was first, because it is what the user has to deal with.
"""

from __future__ import annotations

import enum
import signal

import msgspec

from jlaunch.core.contract import ExitCode, Reason

CAUSE_WINDOW_S = 1.0
"""How far apart two sightings of one accident may lie: freeing the memory of a killed process delays
its death by 65 ms per GiB (measured), a peer's socket error is there within 8 ms."""


class CauseKind(enum.Enum):
    """What went wrong, or what was asked."""

    EXITED = "exited"
    KILLED = "killed"
    SPAWN_FAILED = "spawn failed"
    INIT_FAILED = "init failed"
    START_TIMEOUT = "start timeout"
    FINISHED_EARLY = "finished early"
    STUCK = "stuck"
    PAUSED = "paused"
    DESYNC = "desync"
    HOST_LOST = "host lost"
    CONTROL_LOST = "control lost"
    STOPPED = "stopped"
    UNKILLABLE = "unkillable"
    INTERNAL = "internal"


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to blame. ``status`` (``subprocess`` form) where a process ended, ``text`` the line.

    For ``STOPPED`` ``status`` is the negative signal number that jlaunch received.
    """

    kind: CauseKind
    at: float
    text: str
    ranks: tuple[int, ...] = ()
    status: int | None = None


_CODES: dict[CauseKind, ExitCode] = {
    CauseKind.INIT_FAILED: ExitCode.START_TIMEOUT,
    CauseKind.START_TIMEOUT: ExitCode.START_TIMEOUT,
    CauseKind.FINISHED_EARLY: ExitCode.FINISHED_EARLY,
    CauseKind.STUCK: ExitCode.STUCK,
    CauseKind.PAUSED: ExitCode.PAUSED,
    CauseKind.DESYNC: ExitCode.DESYNC,
    CauseKind.HOST_LOST: ExitCode.HOST_LOST,
    CauseKind.CONTROL_LOST: ExitCode.CONTROL_LOST,
    CauseKind.UNKILLABLE: ExitCode.UNKILLABLE,
    CauseKind.INTERNAL: ExitCode.INTERNAL,
    CauseKind.SPAWN_FAILED: ExitCode.START_TIMEOUT,
    CauseKind.EXITED: ExitCode.FINISHED_EARLY,
    CauseKind.KILLED: ExitCode.INTERNAL,
    CauseKind.STOPPED: ExitCode.INTERNAL,
}
"""Codes of causes without a status of their own. A death whose status nobody learnt (the claim's
holder was a grandchild, reaped by its own parent) counts as finished early, which it is to the others."""

REASONS: dict[CauseKind, Reason] = {
    CauseKind.EXITED: Reason.EXITED,
    CauseKind.KILLED: Reason.KILLED,
    CauseKind.SPAWN_FAILED: Reason.INIT_FAILED,
    CauseKind.INIT_FAILED: Reason.INIT_FAILED,
    CauseKind.START_TIMEOUT: Reason.INIT_FAILED,
    CauseKind.STUCK: Reason.STUCK,
    CauseKind.PAUSED: Reason.PAUSED,
    CauseKind.DESYNC: Reason.DESYNC,
    CauseKind.HOST_LOST: Reason.HOST_LOST,
    CauseKind.CONTROL_LOST: Reason.CONTROL_LOST,
}
"""The word that the other ranks hear for a rank lost by a cause."""


def exit_code(cause: Cause) -> int:
    """The exit code of jlaunch for this cause; never 0."""
    if cause.status:
        return cause.status if cause.status > 0 else 128 - cause.status
    return int(_CODES[cause.kind])


def signal_text(number: int) -> str:
    """For example ``SIGKILL (signal 9)``; the number alone if this system has no name for it."""
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"


def ended_text(status: int | None) -> str:
    """How a process ended, as the end of a sentence about it."""
    if status is None:
        return "died"
    if status < 0:
        return f"was killed by {signal_text(-status)}"
    return f"exited with code {status}"


def death_kind(status: int | None) -> CauseKind:
    """Exited or killed, by the status."""
    return CauseKind.KILLED if status is not None and status < 0 else CauseKind.EXITED


class Inquest:
    """The causes of one epoch, in the order in which they were seen."""

    def __init__(self) -> None:
        self._causes: list[Cause] = []
        self._unkillable: list[Cause] = []

    def __bool__(self) -> bool:
        return bool(self._causes or self._unkillable)

    @property
    def causes(self) -> tuple[Cause, ...]:
        """All that was recorded, oldest first."""
        return (*self._causes, *self._unkillable)

    def record(self, cause: Cause) -> None:
        """Add a cause that is nobody's consequence."""
        if cause.kind is CauseKind.UNKILLABLE:
            self._unkillable.append(cause)
        else:
            self._causes.append(cause)

    def amend(self, rank: int, status: int, text: str) -> None:
        """The status of ``rank`` became known after its death (or failed init) was recorded."""
        for index, cause in enumerate(self._causes):
            if cause.ranks == (rank,) and cause.status is None and cause.kind in _AMENDABLE:
                if cause.kind is CauseKind.INIT_FAILED:
                    # Its text stays, the program's own code becomes the job's.
                    self._causes[index] = msgspec.structs.replace(cause, status=max(status, 0) or None)
                else:
                    kind = death_kind(status)
                    self._causes[index] = msgspec.structs.replace(cause, kind=kind, status=status, text=text)

    def root(self) -> Cause | None:
        """The one to blame, None if there is nothing to blame."""
        if not self._causes:
            return self._unkillable[0] if self._unkillable else None
        first = self._causes[0]
        if first.kind in _DEATHS and first.status != -_SIGKILL:
            for cause in self._causes[1:]:
                is_near = cause.at - first.at <= CAUSE_WINDOW_S
                if is_near and cause.kind is CauseKind.KILLED and cause.status == -_SIGKILL:
                    return cause
        return first

    def exit_code(self) -> int:
        """The job's exit code: 0 if there is nothing to blame."""
        root = self.root()
        if root is None:
            return int(ExitCode.OK)
        return exit_code(self._unkillable[0] if self._unkillable else root)

    def text(self) -> str:
        """The line for people: the root cause, those who fell with it, what cannot be killed."""
        root = self.root()
        if root is None:
            return ""
        parts = [root.text]
        parts += [cause.text for cause in self.fellows()]
        parts += [cause.text for cause in self._unkillable if cause is not root]
        return "; ".join(parts)

    def blamed_ranks(self) -> tuple[int, ...]:
        """The ranks of the root cause and of those who fell with it."""
        root = self.root()
        causes = [] if root is None else [root, *self.fellows()]
        return tuple(dict.fromkeys(rank for cause in causes for rank in cause.ranks))

    def fellows(self) -> list[Cause]:
        """Deaths of the same kind beside the root (two ranks that crash at once), at most four."""
        root = self.root()
        if root is None or root.kind not in _DEATHS:
            return []
        same = [
            cause
            for cause in self._causes
            if cause is not root
            and (cause.kind, cause.status) == (root.kind, root.status)
            and abs(cause.at - root.at) <= CAUSE_WINDOW_S
        ]
        return same[:_FELLOWS_MAX]


_SIGKILL = 9
_FELLOWS_MAX = 4
_DEATHS = (CauseKind.EXITED, CauseKind.KILLED)
_AMENDABLE = (*_DEATHS, CauseKind.INIT_FAILED)
