"""What happened: frozen values in the past tense.

Rules of this file. An event is a fact that somebody saw, never an opinion; the kind of a fact is
its class, not a flag. Most are made by an agent and travel to the supervisor as they are
(``core.messages`` wraps them), so each is a tagged, typed struct. An event that speaks of a rank
carries its epoch; a stale one is dropped and counted in one place, the job machine.
"""

from __future__ import annotations

import msgspec

from jlaunch.core.contract import Collective, Reason


class Event(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Base of all events."""


class RankEvent(Event, frozen=True, kw_only=True):
    """Base of events about one rank's process in one epoch."""

    rank: int
    epoch: int


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """A rank inside a collective, as its control block says.

    ``waited_s`` counts from the last progress. ``waiting_for`` are the ranks whose data is missing.
    """

    collective: Collective
    seq: int
    size_bytes: int
    waited_s: float
    waiting_for: tuple[int, ...]
    group: int = 0


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a rank's control block and process.

    ``progress`` and ``reports`` only grow; two samples that differ in either mean that the rank moved.
    ``completed_seq`` is the last collective of the world group that the rank finished.
    ``wait`` is None outside a collective.
    """

    progress: int
    reports: int
    completed_seq: int
    paused: bool
    output_blocked: bool
    wait: Wait | None = None


# ---- the job's own -------------------------------------------------------------------------------


class JobStarted(Event, frozen=True, kw_only=True):
    """The supervisor's loop runs; first event of every job."""


class StopRequested(Event, frozen=True, kw_only=True):
    """A person asked for the end: ``signal`` is the number the launcher received (SIGINT, SIGTERM, …).

    A second one while stopping means: at once.
    """

    signal: int


class PauseRequested(Event, frozen=True, kw_only=True):
    """A person asked that the whole job stand still (SIGTSTP: Ctrl-Z in its terminal)."""


class ResumeRequested(Event, frozen=True, kw_only=True):
    """A person asked that it go on (SIGCONT: ``fg``, ``bg``)."""


class ActionFailed(Event, frozen=True, kw_only=True):
    """A shell could not do what an action asked."""

    action: str
    error: str
    rank: int | None = None
    host: int | None = None


# ---- hosts ---------------------------------------------------------------------------------------


class AgentReady(Event, frozen=True, kw_only=True):
    """A host's agent connected. ``incarnation`` is drawn by the agent at its start."""

    host: int
    incarnation: str
    pid: int


class AgentExited(Event, frozen=True, kw_only=True):
    """The agent's process ended (seen by its parent) or its link said goodbye.

    ``status`` is the wait status in ``subprocess`` form (negative signal), None if unknown.
    """

    host: int
    status: int | None
    incarnation: str = ""
    """Which agent it was; '' for the host's present one."""


class HeartbeatArrived(Event, frozen=True, kw_only=True):
    """Any message from a host's agent is a sign of life; this one comes if there is nothing else.

    ``beat`` numbers the heartbeats of one incarnation; ``RenewLease`` echoes it, and the lease counts
    from the moment the agent sent that beat: so the supervisor knows when a lease has lapsed, however
    long its renewals lay in the network. ``waits`` tells which local ranks are inside a collective.
    """

    host: int
    beat: int = 0
    waits: dict[int, Wait] = {}


class LeaseLapsed(Event, frozen=True, kw_only=True):
    """The agent heard nothing from above for a whole lease and ends its ranks; it exits after that."""

    host: int


class HostPaused(Event, frozen=True, kw_only=True):
    """The ranks of ``host`` were sent SIGSTOP, as PauseHost asked."""

    host: int


# ---- a rank's process ----------------------------------------------------------------------------


class RankSpawned(RankEvent, frozen=True, kw_only=True):
    """The process exists: ``pid`` is also its process group."""

    pid: int


class RankSpawnFailed(RankEvent, frozen=True, kw_only=True):
    """The program could not be started (not found, not executable, no process left)."""

    error: str


class RankClaimed(RankEvent, frozen=True, kw_only=True):
    """A process entered ``init`` and holds the rank; its pid may be that of a descendant."""

    pid: int


class RankJoined(RankEvent, frozen=True, kw_only=True):
    """The rank opened its devices and offers its address for the rendezvous."""

    address: bytes


class RankFormed(RankEvent, frozen=True, kw_only=True):
    """All of the rank's queue pairs are ready: it may enter collectives."""


class RankInitFailed(RankEvent, frozen=True, kw_only=True):
    """``init`` failed in this rank, with its own cause."""

    error: str


class RankPaused(RankEvent, frozen=True, kw_only=True):
    """The rank's process is in state T. ``holds_up`` says whether a collective waits for it."""

    signal: int | None = None


class RankResumed(RankEvent, frozen=True, kw_only=True):
    """The rank's process runs again."""


class DeadlineAsked(RankEvent, frozen=True, kw_only=True):
    """The backend saw no progress for ``--deadline`` and asks: keep waiting?

    ``question`` numbers the questions of one control block; the answer carries it.
    """

    question: int
    wait: Wait


class QuestionAnswered(RankEvent, frozen=True, kw_only=True):
    """The agent itself answered "keep waiting", because the supervisor was silent. For the log."""

    question: int
    why: str


class DesyncFound(RankEvent, frozen=True, kw_only=True):
    """The wire header did not match: both calls, as the rank that noticed describes them."""

    peer: int
    here: str
    there: str


class RankSampled(RankEvent, frozen=True, kw_only=True):
    """Answer to ``SampleRanks``."""

    sample: Sample


class StackTaken(RankEvent, frozen=True, kw_only=True):
    """Answer to TakeStack: all threads' stacks, as faulthandler writes them, or why there are none."""

    lines: tuple[str, ...] = ()
    error: str = ""


class RankReported(RankEvent, frozen=True, kw_only=True):
    """The program called ``jlaunch.report``."""

    numbers: dict[str, float]


class RankDied(RankEvent, frozen=True, kw_only=True):
    """The process that held the rank is dying or dead; its memory may not be freed yet.

    Comes before ``RankExited``. ``status`` as in ``RankExited`` or None if not known yet.
    ``completed_seq`` is the last collective of the world group that the rank had finished.
    ``told`` are ranks whose control blocks the agent has already written (the fast path).
    ``wait`` is the collective that the rank was in, or in which it raised, if any.
    """

    status: int | None
    completed_seq: int
    clean: bool = False
    told: tuple[int, ...] = ()
    wait: Wait | None = None


class RankExited(RankEvent, frozen=True, kw_only=True):
    """The rank's process and its group are gone, confirmed.

    ``status``: exit code if >= 0, negative signal number if killed (``subprocess`` form).
    ``by``: who ended it: ``itself``, ``term``, ``kill``. ``tail``: last lines of its stderr.
    """

    status: int
    by: str = "itself"
    tail: tuple[str, ...] = ()
    completed_seq: int = 0
    claimed: bool = False
    wait: Wait | None = None


class RankUnkillable(RankEvent, frozen=True, kw_only=True):
    """SIGKILL was sent and the process is still there after the agent's bound."""

    pid: int


class VerdictWritten(Event, frozen=True, kw_only=True):
    """The agent has written verdict ``verdict`` into every block it was addressed to on its host."""

    host: int
    verdict: int


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """One lost rank, as told to the others.

    ``completed_seq``: collectives of the world group up to this one are finished by it.
    ``clean``: it exited with 0; nothing is raised until a collective needs it.
    """

    rank: int
    reason: Reason
    completed_seq: int = 0
    clean: bool = False


AgentEvent = (
    AgentReady
    | HeartbeatArrived
    | LeaseLapsed
    | HostPaused
    | RankSpawned
    | RankSpawnFailed
    | RankClaimed
    | RankJoined
    | RankFormed
    | RankInitFailed
    | RankPaused
    | RankResumed
    | DeadlineAsked
    | QuestionAnswered
    | DesyncFound
    | RankSampled
    | StackTaken
    | RankReported
    | RankDied
    | RankExited
    | RankUnkillable
    | VerdictWritten
    | ActionFailed
)
"""Events that an agent sends to the supervisor."""


class AgentHeard(Event, frozen=True, kw_only=True):
    """A host's agent said ``event``: how everything from an agent enters the job machine.

    ``host`` and ``incarnation`` are those of the envelope (``messages.Up``), not of the event: the
    machine drops what comes from an agent that was declared lost, and what speaks of another host's
    ranks. Any message of an agent that is no event (output) is fed as ``HeartbeatArrived``.
    """

    host: int
    incarnation: str
    event: AgentEvent


class DeadlineReached(Event, frozen=True, kw_only=True):
    """The moment that ``next_deadline()`` named has come. The driver's timer; ``wake(now)`` is the same."""


class HostSwept(Event, frozen=True, kw_only=True):
    """After the end of a host's agent: its guardian has ended, nothing of the job lives there.

    May be fed to shorten a wait: without it, a restart waits until grace and a margin have passed.
    """

    host: int


JobEvent = (
    AgentHeard
    | JobStarted
    | StopRequested
    | PauseRequested
    | ResumeRequested
    | AgentExited
    | HostSwept
    | ActionFailed
    | DeadlineReached
)
"""Everything that the job machine handles."""
