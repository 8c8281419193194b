"""What an agent's shell sees on its own host: the local half of the agent machine's events.

Rules of this file. A fact is what the operating system, a control block or a rank's socket said, as
it said it; what follows from it is decided in ``core.agent``. Facts never leave the host: what the
supervisor must know, the machine sends up as one of ``core.events``.
"""

from __future__ import annotations

from jlaunch.core.actions import AgentOrder
from jlaunch.core.events import DeadlineReached, Event, Wait
from jlaunch.core.messages import Formed, InitFailed, Join, Report


class Fact(Event, frozen=True, kw_only=True):
    """Base of all facts."""


class RankFact(Fact, frozen=True, kw_only=True):
    """Base of facts about the process started as ``rank`` in ``epoch``."""

    rank: int
    epoch: int


# ---- the agent itself ----------------------------------------------------------------------------


class AgentStarted(Fact, frozen=True, kw_only=True):
    """Sockets, host block, guardian and watch are up: the first fact of every agent."""


class SupervisorHeard(Fact, frozen=True, kw_only=True):
    """A message came from above that is not an order (stdin, an acknowledgement of output)."""


class SupervisorGone(Fact, frozen=True, kw_only=True):
    """End of file on the pipe from the supervisor: it is dead, or has let go of this agent.

    On a host behind SSH the shell feeds it only when the link was silent too for 2 s.
    """


class DeedFailed(Fact, frozen=True, kw_only=True):
    """The shell could not carry out a deed that has no failure fact of its own."""

    deed: str
    error: str
    rank: int | None = None


# ---- processes -----------------------------------------------------------------------------------


class ProcessStarted(RankFact, frozen=True, kw_only=True):
    """Answer to ``StartProcess``: the process exists; ``pid`` is also its process group."""

    pid: int


class ProcessStartFailed(RankFact, frozen=True, kw_only=True):
    """Answer to ``StartProcess``: there is no process, and ``error`` says why."""

    error: str


class ProcessStopped(RankFact, frozen=True, kw_only=True):
    """The rank's process (the holder of the claim, if there is one) is in state T."""

    signal: int | None = None


class ProcessContinued(RankFact, frozen=True, kw_only=True):
    """It runs again."""


class ProcessExited(RankFact, frozen=True, kw_only=True):
    """The process that ``StartProcess`` made was reaped; members of its group may live on.

    ``status`` in ``subprocess`` form. ``completed_seq`` and ``wait`` are the last words of its
    control block (0 and None if it never held the claim).
    """

    status: int
    completed_seq: int = 0
    wait: Wait | None = None


class GroupVanished(RankFact, frozen=True, kw_only=True):
    """Nothing of the rank's process group is left, and its pipes are drained or given up.

    Fed once, after ``ProcessExited``, as soon as it is true. ``tail``: last lines of stderr.
    """

    tail: tuple[str, ...] = ()


# ---- control blocks ------------------------------------------------------------------------------


class ClaimTaken(RankFact, frozen=True, kw_only=True):
    """A process entered ``init`` and holds the rank."""

    pid: int


class ClaimDied(RankFact, frozen=True, kw_only=True):
    """The holder of the claim is dying or dead (its life word was marked); it may not be reaped yet.

    ``status`` in ``subprocess`` form if the system tells it already, else None. ``clean``: it had let
    go of the group in good order (phase LEAVING) or its status is known to be 0.
    """

    status: int | None
    completed_seq: int
    clean: bool = False
    wait: Wait | None = None


class ClaimLeft(RankFact, frozen=True, kw_only=True):
    """The holder let go of the group in good order and is about to end (phase LEAVING)."""

    completed_seq: int


class QuestionFound(RankFact, frozen=True, kw_only=True):
    """The backend saw no progress for ``--deadline`` and asks; one fact for each new number."""

    question: int
    wait: Wait


class DesyncSeen(RankFact, frozen=True, kw_only=True):
    """The wire header did not match; ``here`` and ``there`` name both calls."""

    peer: int
    here: str
    there: str


class LeftWait(RankFact, frozen=True, kw_only=True):
    """After ``WriteBlock`` with STOP: the rank is not inside the poll loop (any more)."""


# ---- the ranks' socket ---------------------------------------------------------------------------


class RankSpoke(Fact, frozen=True, kw_only=True):
    """A rendezvous message or a report, as it came over the ranks' socket."""

    body: Join | Formed | InitFailed | Report


AgentInput = (
    AgentOrder
    | AgentStarted
    | SupervisorHeard
    | SupervisorGone
    | DeedFailed
    | ProcessStarted
    | ProcessStartFailed
    | ProcessStopped
    | ProcessContinued
    | ProcessExited
    | GroupVanished
    | ClaimTaken
    | ClaimDied
    | ClaimLeft
    | QuestionFound
    | DesyncSeen
    | LeftWait
    | RankSpoke
    | DeadlineReached
)
"""Everything that the agent machine handles: orders from above and facts of its host."""
