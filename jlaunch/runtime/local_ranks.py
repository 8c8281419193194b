"""What an agent sees of its own ranks, and how it touches them: processes and control blocks, as facts.

It decides nothing: every change is fed to the agent machine, once. What tells it of a change:

======================  ==================================================================
a death                 the watch (the life word in the block), before memory is even freed
exit, stop, continue    SIGCHLD and ``waitpid``
claim, phase, question  the doorbell of the host block
left the wait           a look, while an order to stop is under way
a pause behind a        a look at the holder of the claim, while that is not the process
wrapper                 that we started
the end of a group      a look whenever a child was reaped, and while a group lingers
======================  ==================================================================
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from collections.abc import Callable, Mapping, Sequence

from jlaunch.core.actions import SignalGroup, StartProcess, WriteBlock
from jlaunch.core.contract import HostFiles, Phase, VerdictKind
from jlaunch.core.events import Sample, Wait
from jlaunch.core.facts import (
    AgentInput,
    ClaimDied,
    ClaimLeft,
    ClaimTaken,
    DesyncSeen,
    GroupVanished,
    LeftWait,
    ProcessContinued,
    ProcessExited,
    ProcessStarted,
    ProcessStartFailed,
    ProcessStopped,
    QuestionFound,
)
from jlaunch.io import platform, process
from jlaunch.io.control_block import HostBlock, RankBlock, RankState
from jlaunch.io.guardian_process import GuardianProcess
from jlaunch.io.process import Child, Continued, Exited, Stopped
from jlaunch.runtime.driver import Driver, Timer
from jlaunch.runtime.pump import OutputPump
from jlaunch.runtime.stdin import StdinFan

HOLDER_LOOK_S = 0.15
"""A pause behind a wrapper is shown within 250 ms; nothing tells of a grandchild's state but a look."""

GROUP_LOOK_S = 0.1
"""Members of a group whose parents are not ours end without a word to us."""

LEFT_WAIT_LOOK_S = 0.01
"""A rank that is told to stop is asked so often whether it has left its wait; SIGTERM waits for that."""


class LocalRank:
    """One started process of a rank in one epoch, with what was told of it already."""

    def __init__(self, deed: StartProcess, key: int, path: str, block: RankBlock) -> None:
        self.rank = deed.rank
        self.epoch = deed.epoch
        self.key = key
        self.path = path
        self.block = block
        self.child: Child | None = None
        self.argv: Sequence[str] = ()
        self.cwd = ""
        self.is_running = False
        """Its program was executed; until then its end is a failed start."""
        self.has_exited = False
        self.is_stopped = False
        self.is_told_to_stop = False
        self.holder: int | None = None
        """Process that holds the claim; may be a descendant of the child."""
        self.question = 0
        self.has_left = False
        self.has_desync = False

    @property
    def is_behind_wrapper(self) -> bool:
        """Whether the claim is held by another process than the one that we started."""
        return self.holder is not None and self.child is not None and self.holder != self.child.pid


class LocalRanks:
    """All processes that this agent has started and whose groups are not gone yet."""

    def __init__(
        self,
        driver: Driver,
        host_block: HostBlock,
        *,
        job: str,
        world_size: int,
        host_dir: str,
        pump: OutputPump,
        stdin: StdinFan,
        guardian: GuardianProcess,
        feed: Callable[[AgentInput], None],
    ) -> None:
        self._driver = driver
        self._job = job
        self._world_size = world_size
        self._host_dir = host_dir
        self._pump = pump
        self._stdin = stdin
        self._guardian = guardian
        self._feed = feed
        self._ranks: dict[tuple[int, int], LocalRank] = {}
        self._by_key: dict[int, LocalRank] = {}
        self._by_pid: dict[int, LocalRank] = {}
        self._next_key = 1
        self._looks: dict[Callable[[], None], Timer] = {}
        self._watch = host_block.watch()
        driver.watch(self._watch.fileno(), self.take_news)

    def close(self) -> None:
        """Release the watch: the ranks' keepers take that for the end of this agent."""
        self._driver.unwatch(self._watch.fileno())
        self._watch.close()

    @property
    def is_empty(self) -> bool:
        """Whether every group is gone."""
        return not self._ranks

    def has_epoch(self, epoch: int) -> bool:
        """Whether a process of that epoch is left."""
        return any(of == epoch for _, of in self._ranks)

    def holder(self, rank: int, epoch: int) -> tuple[int, int] | None:
        """Who holds the claim, and the signal on which it writes its stacks (0: none); None if nobody."""
        of = self._ranks.get((rank, epoch))
        return None if of is None or of.holder is None else (of.holder, of.block.read().stack_signal)

    # ---- deeds -----------------------------------------------------------------------------------

    def start(
        self, deed: StartProcess, argv: Sequence[str], env: Mapping[str, str], *, cwd: str, stdin: bool
    ) -> None:
        """Create the block and the process. The answer is fed once the program was executed, or was not."""
        path = os.path.join(self._host_dir, HostFiles.rank_block(deed.rank, deed.epoch))
        try:
            block = RankBlock.create(path, rank=deed.rank, epoch=deed.epoch, world_size=self._world_size)
        except OSError as error:
            self._feed(ProcessStartFailed(rank=deed.rank, epoch=deed.epoch, error=f"control block: {error}"))
            return
        rank = LocalRank(deed, self._next_key, path, block)
        self._next_key += 1
        try:
            rank.child = process.spawn(argv, env, cwd=cwd, stdin=stdin)
        except OSError as error:
            block.close()
            os.unlink(path)
            self._feed(ProcessStartFailed(rank=deed.rank, epoch=deed.epoch, error=str(error)))
            return
        rank.argv, rank.cwd = argv, cwd
        self._guardian.add(rank.child.process)
        self._ranks[(rank.rank, rank.epoch)] = self._by_key[rank.key] = self._by_pid[rank.child.pid] = rank
        self._watch.add(rank.key, block)
        self._driver.watch(rank.child.spawn_status, functools.partial(self._spawn_known, rank))

    def write_block(self, deed: WriteBlock) -> None:
        """Write a verdict and ring the rank's bell; nothing if its process is gone."""
        rank = self._ranks.get((deed.rank, deed.epoch))
        if rank is None:
            return
        rank.block.write_verdict(deed.verdict, deed.kind, deed.losses, question=deed.question)
        if deed.kind is VerdictKind.STOP and not rank.is_told_to_stop:
            rank.is_told_to_stop = True
            self._look_soon(self._look_for_leavers, 0.0)

    def signal(self, deed: SignalGroup) -> None:
        """Send a signal to the rank's group; SIGKILL also to what has left the group."""
        rank = self._ranks.get((deed.rank, deed.epoch))
        if rank is None or rank.child is None:
            return
        process.signal_group(rank.child.process, deed.signal)
        if deed.signal == signal.SIGKILL:
            strays = process.descendants(self._job, rank=deed.rank, epoch=deed.epoch)
            process.signal_all(strays, signal.SIGKILL)

    def sample(self, rank_index: int, epoch: int) -> Sample | None:
        """One look at a rank; None if its process is gone."""
        rank = self._ranks.get((rank_index, epoch))
        if rank is None:
            return None
        blocked = self._pump.is_blocked(rank.rank, rank.epoch)
        return rank.block.read().sample(paused=rank.is_stopped, output_blocked=blocked)

    def waits(self) -> dict[int, Wait]:
        """Ranks that hold a claim and are inside a collective."""
        found = {}
        for rank in self._ranks.values():
            if rank.holder is not None and (wait := rank.block.read().wait) is not None:
                found[rank.rank] = wait
        return found

    # ---- news of blocks --------------------------------------------------------------------------

    def take_news(self) -> None:
        """Deaths first: survivors wait for the verdict that follows from them."""
        died, rang = self._watch.take()
        for key in died:
            rank = self._by_key.get(key)
            if rank is not None:
                self._claim_died(rank)
        if rang:
            for rank in list(self._ranks.values()):
                self._look(rank)

    def catch_up(self, rank_index: int, epoch: int) -> None:
        """Feed what is known of a rank before what it says is fed: its socket may be the faster way."""
        rank = self._ranks.get((rank_index, epoch))
        if rank is not None:
            self._look(rank)

    def _claim_died(self, rank: LocalRank) -> None:
        self._ensure_spawn_known(rank)
        if not rank.is_running:
            return
        view = rank.block.read()
        if rank.holder is None:
            # It entered and died before we looked for the first time.
            self._claim_taken(rank, view)
        assert rank.holder is not None
        status = platform.early_status(rank.holder)
        self._look(rank)
        rank.holder = None
        self._feed(
            ClaimDied(
                rank=rank.rank,
                epoch=rank.epoch,
                status=status,
                completed_seq=view.completed_seq,
                clean=view.phase == Phase.LEAVING or status == 0,
                wait=view.wait,
            )
        )

    def _claim_taken(self, rank: LocalRank, view: RankState) -> None:
        rank.holder = view.owner_pid
        rank.has_left = False
        self._feed(ClaimTaken(rank=rank.rank, epoch=rank.epoch, pid=view.owner_pid))
        if rank.is_behind_wrapper:
            self._look_soon(self._look_at_holders, HOLDER_LOOK_S)

    def _look(self, rank: LocalRank) -> None:
        """Feed what is new in a rank's block."""
        self._ensure_spawn_known(rank)
        if not rank.is_running:
            return
        view = rank.block.read()
        at = {"rank": rank.rank, "epoch": rank.epoch}
        if view.owner_alive and view.owner_pid not in (0, rank.holder):
            self._claim_taken(rank, view)
        if view.phase == Phase.LEAVING and not rank.has_left:
            rank.has_left = True
            self._feed(ClaimLeft(completed_seq=view.completed_seq, **at))
        if view.question != rank.question:
            rank.question = view.question
            if view.asked_in is not None:
                self._feed(QuestionFound(question=view.question, wait=view.asked_in, **at))
        if view.desync is not None and not rank.has_desync:
            rank.has_desync = True
            found = view.desync
            self._feed(DesyncSeen(peer=found.peer, here=found.here, there=found.there, **at))
        if rank.is_told_to_stop and not view.in_wait:
            rank.is_told_to_stop = False
            self._feed(LeftWait(**at))

    def _look_for_leavers(self) -> None:
        asked = [rank for rank in self._ranks.values() if rank.is_told_to_stop]
        for rank in asked:
            self._look(rank)
        if any(rank.is_told_to_stop for rank in self._ranks.values()):
            self._look_soon(self._look_for_leavers, LEFT_WAIT_LOOK_S)

    # ---- news of processes -----------------------------------------------------------------------

    def reap(self) -> list[int]:
        """Take what became of our children. Returns those that ended and are no rank of ours."""
        others = []
        # A death is told by the watch as well: that one has the last words, so it comes first.
        self.take_news()
        for fact in process.reap():
            rank = self._by_pid.get(fact.pid)
            if rank is None:
                if isinstance(fact, Exited):
                    others.append(fact.pid)
                continue
            match fact:
                case Exited(status=status):
                    self._exited(rank, status)
                case Stopped(signal=number):
                    self._stopped(rank, number)
                case Continued():
                    self._stopped(rank, None)
        self._look_at_groups()
        return others

    def _ensure_spawn_known(self, rank: LocalRank) -> None:
        """A rank that acts was executed, whatever is read first: its status, its block or its socket."""
        if not rank.is_running:
            # Not known yet: then it has not acted, and nothing is to be told.
            with contextlib.suppress(BlockingIOError):
                self._spawn_known(rank)

    def _spawn_known(self, rank: LocalRank) -> None:
        """The program was executed, or could not be."""
        assert rank.child is not None
        error = process.spawn_error(rank.child, rank.argv, rank.cwd)
        self._driver.unwatch(rank.child.spawn_status)
        if error is not None:
            self._forget(rank)
            for fd in (rank.child.stdin, rank.child.stdout, rank.child.stderr):
                if fd is not None:
                    os.close(fd)
            self._feed(ProcessStartFailed(rank=rank.rank, epoch=rank.epoch, error=str(error)))
            return
        rank.is_running = True
        self._pump.add(rank.rank, rank.epoch, stdout=rank.child.stdout, stderr=rank.child.stderr)
        if rank.child.stdin is not None:
            self._stdin.add(rank.rank, rank.epoch, rank.child.stdin)
        self._feed(ProcessStarted(rank=rank.rank, epoch=rank.epoch, pid=rank.child.pid))

    def _exited(self, rank: LocalRank, status: int) -> None:
        self._ensure_spawn_known(rank)
        if not rank.is_running:
            return
        rank.has_exited = True
        self._stdin.remove(rank.rank)
        view = rank.block.read()
        self._feed(
            ProcessExited(
                rank=rank.rank,
                epoch=rank.epoch,
                status=status,
                completed_seq=view.completed_seq,
                wait=view.wait,
            )
        )

    def _stopped(self, rank: LocalRank, number: int | None) -> None:
        """The child's state has changed; behind a wrapper only the holder's counts."""
        if rank.is_behind_wrapper:
            self._look_at_holders()
        else:
            self._set_stopped(rank, number is not None, number)

    def _set_stopped(self, rank: LocalRank, is_stopped: bool, number: int | None = None) -> None:
        if is_stopped == rank.is_stopped:
            return
        rank.is_stopped = is_stopped
        if is_stopped:
            self._feed(ProcessStopped(rank=rank.rank, epoch=rank.epoch, signal=number))
        else:
            self._feed(ProcessContinued(rank=rank.rank, epoch=rank.epoch))

    def _look_at_holders(self) -> None:
        behind = [rank for rank in self._ranks.values() if rank.is_behind_wrapper]
        for rank in behind:
            assert rank.holder is not None
            self._set_stopped(rank, platform.is_stopped(rank.holder))
        if behind:
            self._look_soon(self._look_at_holders, HOLDER_LOOK_S)

    def _look_at_groups(self) -> None:
        for rank in [rank for rank in self._ranks.values() if rank.has_exited]:
            assert rank.child is not None
            if not process.has_group(rank.child.process):
                self._forget(rank)
                tail = self._pump.finish(rank.rank, rank.epoch)
                self._feed(GroupVanished(rank=rank.rank, epoch=rank.epoch, tail=tail))
        if any(rank.has_exited for rank in self._ranks.values()):
            self._look_soon(self._look_at_groups, GROUP_LOOK_S)

    def _forget(self, rank: LocalRank) -> None:
        assert rank.child is not None
        del self._ranks[(rank.rank, rank.epoch)], self._by_key[rank.key], self._by_pid[rank.child.pid]
        self._watch.remove(rank.key)
        self._guardian.remove(rank.child.process)
        rank.block.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(rank.path)

    def _look_soon(self, look: Callable[[], None], delay_s: float) -> None:
        """Have ``look`` called after a while; an appointment that it has already stands."""
        timer = self._looks.get(look)
        if timer is None or timer.handler is None:
            self._looks[look] = self._driver.call_later(delay_s, look)
