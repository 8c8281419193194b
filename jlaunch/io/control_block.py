"""The control blocks, in the launcher's own values: a thin face over the native ``_control``.

Rules of this file. Times become seconds against now; numbers that a rank wrote are checked before they
become a member of an enumeration or the index of a rank. Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from jlaunch.backend import _control
from jlaunch.core.calls import describe_call
from jlaunch.core.contract import Collective, Phase, VerdictKind
from jlaunch.core.events import Loss, Sample, Wait

_PHASES = {int(phase): phase for phase in Phase}
_COLLECTIVES = {int(collective): collective for collective in Collective if collective}


class Desync(msgspec.Struct, frozen=True, kw_only=True):
    """The rank found a peer in another call: both calls, as the wire header has them, in words."""

    peer: int
    here: str
    there: str


class RankState(msgspec.Struct, frozen=True, kw_only=True):
    """The rank's half of its block at one moment.

    ``owner_pid`` is the last process that claimed the rank, 0 if none did; ``owner_alive`` says whether it
    holds the claim still. ``waits`` are the collectives it is in, by group slot. ``asked_in`` is the one
    that the last question was about, None if it is over. ``stack_signal`` is the one on which it writes its
    stacks, 0 while no handler is armed. ``torn``: read past a writer frozen in an update.
    """

    owner_pid: int
    owner_alive: bool
    phase: Phase
    epoch: int
    progress: int
    reports: int
    question: int
    in_wait: bool
    completed_seq: int
    desync: Desync | None
    waits: tuple[Wait, ...]
    asked_in: Wait | None
    stack_signal: int
    torn: bool

    @property
    def wait(self) -> Wait | None:
        """The collective without progress for the longest, of those it is in."""
        return max(self.waits, key=lambda wait: wait.waited_s, default=None)

    def sample(self, *, paused: bool, output_blocked: bool) -> Sample:
        """This look as a ``Sample``, with what the block does not know."""
        return Sample(
            progress=self.progress,
            reports=self.reports,
            completed_seq=self.completed_seq,
            paused=paused,
            output_blocked=output_blocked,
            wait=self.wait,
        )


class RankBlock:
    """The control block of one rank's process, owned by its agent."""

    def __init__(self, native: _control.RankBlock, world_size: int) -> None:
        self._native = native
        self._world_size = world_size

    @classmethod
    def create(cls, path: str, *, rank: int, epoch: int, world_size: int) -> RankBlock:
        """Make the file (0600, its space allocated). Raises OSError, FileExistsError above all."""
        return cls(_control.RankBlock.create(path, rank, epoch), world_size)

    @classmethod
    def open(cls, path: str, *, world_size: int) -> RankBlock:
        """Map an existing one. Raises OSError, or RuntimeError if it is not a block of ours."""
        return cls(_control.RankBlock.open(path), world_size)

    def read(self) -> RankState:
        """Look at the rank's half; never waits for the rank, however frozen."""
        view = self._native.read()
        now_ns = _control.monotonic_ns()
        waits = {
            wait.slot: self._wait(wait, now_ns) for wait in view.waits if wait.collective in _COLLECTIVES
        }
        return RankState(
            owner_pid=view.owner_pid,
            owner_alive=view.owner_alive,
            phase=_PHASES.get(view.phase, Phase.NONE),
            epoch=view.epoch,
            progress=view.progress,
            reports=view.reports,
            question=view.question,
            in_wait=view.in_wait,
            completed_seq=view.completed_seq,
            desync=self._desync(view.desync),
            waits=tuple(waits.values()),
            asked_in=waits.get(view.question_slot) if view.question else None,
            stack_signal=view.stack_signal,
            torn=view.torn,
        )

    def write_verdict(
        self, verdict: int, kind: VerdictKind, losses: Iterable[Loss] = (), *, question: int = 0
    ) -> None:
        """Write a verdict and ring the rank's bell. ``question`` is the last one answered.

        KEEP_WAITING only answers; RAISE and STOP stand, STOP outranks RAISE, and ``losses`` (all of the
        epoch so far) replaces what was told before unless it is empty.
        """
        told = [(loss.rank, int(loss.reason), loss.completed_seq, loss.clean) for loss in losses]
        self._native.write_verdict(verdict, int(kind), told, question)

    def close(self) -> None:
        """Unmap it (a watch keeps its own mapping)."""
        self._native.close()

    def _wait(self, view: _control.WaitView, now_ns: int) -> Wait:
        since_ns = max(view.progress_ns, view.since_ns)
        return Wait(
            collective=_COLLECTIVES[view.collective],
            seq=view.seq,
            size_bytes=view.bytes,
            waited_s=max(0, now_ns - since_ns) / 1e9,
            waiting_for=tuple(rank for rank in view.waiting_for if rank < self._world_size),
            group=view.group,
        )

    def _desync(self, view: tuple[int, int, int, int, int] | None) -> Desync | None:
        if view is None or view[0] >= self._world_size:
            return None
        peer, here, there, seq_here, seq_there = view
        return Desync(peer=peer, here=describe_call(here, seq_here), there=describe_call(there, seq_there))


class HostBlock:
    """The agent's own block: its heartbeat, the lease and the grace, read by every rank's keeper."""

    def __init__(self, native: _control.HostBlock) -> None:
        self._native = native

    @classmethod
    def create(cls, path: str, *, lease_s: float, grace_s: float) -> HostBlock:
        """Make the file, with a first heartbeat; ``inf`` is for ever. Raises OSError."""
        return cls(_control.HostBlock.create(path, lease_s, grace_s))

    @classmethod
    def open(cls, path: str) -> HostBlock:
        """Map an existing one. Raises OSError, or RuntimeError if it is not a block of ours."""
        return cls(_control.HostBlock.open(path))

    def beat(self) -> None:
        """The agent's loop turns: due every second, or six times in a lease if that is more often."""
        self._native.beat()

    @property
    def agent_pid(self) -> int:
        """Process id of the agent that made it."""
        return self._native.agent_pid

    @property
    def agent_alive(self) -> bool:
        """Whether that agent's watch holds the life word."""
        return self._native.agent_alive

    def watch(self) -> Watch:
        """Take the agent's life word and start watching. Raises RuntimeError if somebody holds it."""
        return Watch(_control.Watch(self._native))

    def close(self) -> None:
        """Unmap it (the watch keeps its own mapping)."""
        self._native.close()


class Watch:
    """The agent's native watch over its ranks' claims and the doorbell; see ``backend/src/watch.h``.

    Closing it tells every rank that the agent is gone: the last thing that an agent does.
    """

    def __init__(self, native: _control.Watch) -> None:
        self._native = native

    def fileno(self) -> int:
        """Readable when ``take`` has something to tell."""
        return self._native.fileno()

    def add(self, key: int, block: RankBlock) -> None:
        """Watch a block under a key of the caller's. Raises ValueError if the key is in use."""
        self._native.add(key, block._native)

    def remove(self, key: int) -> None:
        """Forget a key."""
        self._native.remove(key)

    def take(self) -> tuple[list[int], bool]:
        """Keys whose claim's holder died, in order of time, once per claim; and whether the doorbell rang.

        After the doorbell every block may have a new claim, phase or question.
        """
        return self._native.take()

    def close(self) -> None:
        """End the threads and let go of the agent's life word."""
        self._native.close()
