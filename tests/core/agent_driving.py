"""An agent machine and the facts of its host, for tests: host 1 of two, ranks 2 to 5."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from jlaunch.core.actions import Deed, FormGroup, OpenGroup, SendUp, SpawnRank, WriteBlock
from jlaunch.core.agent import AgentMachine
from jlaunch.core.contract import VerdictKind
from jlaunch.core.events import Wait
from jlaunch.core.facts import (
    AgentStarted,
    ClaimDied,
    ClaimTaken,
    GroupVanished,
    ProcessExited,
    ProcessStarted,
    QuestionFound,
    RankSpoke,
)
from jlaunch.core.messages import Formed, Join
from jlaunch.core.spec import Policy
from tests.core.driving import TIMEOUTS, job_spec, wait_for

__all__ = ["TIMEOUTS", "Agent", "of", "sent", "written"]

D = TypeVar("D", bound=Deed)


class Agent:
    """The machine, its clock, its deeds."""

    def __init__(self, policy: Policy = Policy.RAISE) -> None:
        spec = msgspec.structs.replace(job_spec(policy, hosts=2), placement=(0, 0, 1, 1, 1, 1))
        self.machine = AgentMachine(spec, 1, incarnation="i1", pid=77)
        self.now = 100.0

    def feed(self, event: Any) -> list[Deed]:
        """One step; the invariants hold after it."""
        deeds = self.machine.handle(event, self.now)
        self.machine.check()
        return deeds

    def wake(self) -> list[Deed]:
        """The timer fires."""
        deeds = self.machine.wake(self.now)
        self.machine.check()
        return deeds

    def sleep(self, span_s: float) -> list[Deed]:
        """Let time pass."""
        end = self.now + span_s
        deeds: list[Deed] = []
        while (deadline := self.machine.next_deadline()) is not None and deadline <= end:
            self.now = deadline
            deeds += self.wake()
        self.now = end
        return deeds

    def start(self) -> Agent:
        """Up and connected."""
        self.feed(AgentStarted())
        return self

    def spawn(self, rank: int, epoch: int = 1) -> list[Deed]:
        """The order to start a rank."""
        return self.feed(SpawnRank(host=1, rank=rank, epoch=epoch, restart_count=epoch - 1))

    def run(self, *ranks: int, epoch: int = 1) -> Agent:
        """Processes without a claim."""
        for rank in ranks:
            self.spawn(rank, epoch)
            self.feed(ProcessStarted(rank=rank, epoch=epoch, pid=1000 + rank))
        return self

    def claim(self, *ranks: int, epoch: int = 1) -> Agent:
        """They enter ``init``."""
        for rank in ranks:
            self.feed(ClaimTaken(rank=rank, epoch=epoch, pid=1000 + rank))
        return self

    def form(self, *ranks: int, epoch: int = 1) -> Agent:
        """A group that is open."""
        self.run(*ranks, epoch=epoch).claim(*ranks, epoch=epoch)
        for rank in ranks:
            self.feed(RankSpoke(body=Join(rank=rank, epoch=epoch, address=b"here")))
        self.feed(FormGroup(host=1, epoch=epoch, addresses=(b"here",)))
        for rank in ranks:
            self.feed(RankSpoke(body=Formed(rank=rank, epoch=epoch)))
        self.feed(OpenGroup(host=1, epoch=epoch))
        return self

    def die(self, rank: int, status: int | None, *, epoch: int = 1, **more: Any) -> list[Deed]:
        """Its claim died."""
        more.setdefault("completed_seq", 4)
        return self.feed(ClaimDied(rank=rank, epoch=epoch, status=status, **more))

    def exit(self, rank: int, status: int, *, epoch: int = 1, **more: Any) -> list[Deed]:
        """Its process was reaped."""
        return self.feed(ProcessExited(rank=rank, epoch=epoch, status=status, **more))

    def vanish(self, rank: int, *, epoch: int = 1, tail: tuple[str, ...] = ()) -> list[Deed]:
        """Nothing is left of it."""
        return self.feed(GroupVanished(rank=rank, epoch=epoch, tail=tail))

    def end(self, rank: int, status: int, *, epoch: int = 1) -> list[Deed]:
        """Both."""
        return self.exit(rank, status, epoch=epoch) + self.vanish(rank, epoch=epoch)

    def ask(self, rank: int, question: int = 1, wait: Wait | None = None) -> list[Deed]:
        """The poll loop asks."""
        return self.feed(QuestionFound(rank=rank, epoch=1, question=question, wait=wait or wait_for(0)))


def of(deed_type: type[D], deeds: list[Deed], /, **fields: object) -> list[D]:
    """The deeds of one kind whose fields are as given."""
    return [
        deed
        for deed in deeds
        if isinstance(deed, deed_type) and all(getattr(deed, name) == value for name, value in fields.items())
    ]


def sent(deeds: list[Deed]) -> list[Any]:
    """What went up."""
    return [deed.event for deed in of(SendUp, deeds)]


def written(deeds: list[Deed]) -> dict[int, tuple[VerdictKind, set[int]]]:
    """By rank: the verdict and the lost ranks in its block."""
    return {deed.rank: (deed.kind, {loss.rank for loss in deed.losses}) for deed in of(WriteBlock, deeds)}
