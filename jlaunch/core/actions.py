"""What to do: frozen values in the imperative.

Rules of this file. The job machine returns actions; the supervisor carries out those about itself
and sends the ``Order`` ones to the agent of the host they name. The agent machine takes orders as
its events and returns ``Deed``s, which the agent's shell carries out against the operating system.
"""

from __future__ import annotations

import msgspec

from jlaunch.core.contract import VerdictKind
from jlaunch.core.events import AgentEvent, Loss


class Action(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Base of everything a machine asks for."""


# ---- the supervisor's own ------------------------------------------------------------------------


class StartAgent(Action, frozen=True, kw_only=True):
    """Start the agent of ``host`` (a local process, or over SSH)."""

    host: int


class Say(Action, frozen=True, kw_only=True):
    """One line for people, on stderr. ``level``: ``info`` (only with --verbose), ``note``, ``error``."""

    level: str
    text: str


class Suspend(Action, frozen=True, kw_only=True):
    """Stop this process, as the terminal asked; ``ResumeRequested`` when it is continued."""


class EndJob(Action, frozen=True, kw_only=True):
    """All is over: exit with ``code``; ``cause`` is the one line that says why ('' when all is well)."""

    code: int
    cause: str
    tails: dict[int, tuple[str, ...]] = {}
    """Last lines of stderr of the ranks to blame, by rank, to be shown with the cause."""


class RecordVerdict(Action, frozen=True, kw_only=True):
    """Put a decision into the event log: question, answer and why."""

    verdict: int
    kind: VerdictKind
    epoch: int
    ranks: tuple[int, ...]
    why: str
    losses: tuple[Loss, ...] = ()
    question: int | None = None


# ---- orders: supervisor to agent -----------------------------------------------------------------


class Order(Action, frozen=True, kw_only=True):
    """Base of what a supervisor asks of the agent of ``host``."""

    host: int


class SpawnRank(Order, frozen=True, kw_only=True):
    """Start the program as ``rank`` in ``epoch``; the answer is RankSpawned or RankSpawnFailed."""

    rank: int
    epoch: int
    restart_count: int


class FormGroup(Order, frozen=True, kw_only=True):
    """All ranks joined: hand each local rank the addresses of all, indexed by rank."""

    epoch: int
    addresses: tuple[bytes, ...]


class OpenGroup(Order, frozen=True, kw_only=True):
    """All ranks are formed (the barrier of the rendezvous): ``init`` may return."""

    epoch: int


class RefuseGroup(Order, frozen=True, kw_only=True):
    """The group of ``epoch`` will not form: ``init`` raises with these losses and ``why``."""

    epoch: int
    losses: tuple[Loss, ...]
    why: str


class WriteVerdict(Order, frozen=True, kw_only=True):
    """Write a verdict into the blocks of ``ranks``, in this order, then answer VerdictWritten.

    ``question`` is the question answered by KEEP_WAITING. ``losses`` are all losses of the epoch so far.
    """

    verdict: int
    epoch: int
    kind: VerdictKind
    ranks: tuple[int, ...]
    losses: tuple[Loss, ...] = ()
    question: int = 0


class StopRank(Order, frozen=True, kw_only=True):
    """Clean stop of one rank: STOP in its block; SIGTERM once it left its wait or after 200 ms;

    SIGCONT if stopped; SIGKILL to the whole group after ``grace_s``; then RankExited or RankUnkillable.
    ``grace_s`` of 0 means SIGKILL at once.
    """

    rank: int
    epoch: int
    grace_s: float


class SampleRanks(Order, frozen=True, kw_only=True):
    """Read these ranks' blocks and answer with one RankSampled each."""

    epoch: int
    ranks: tuple[int, ...]


class TakeStack(Order, frozen=True, kw_only=True):
    """Have a rank write its Python stacks; answered by StackTaken."""

    rank: int
    epoch: int


class RenewLease(Order, frozen=True, kw_only=True):
    """A word from above: the agent may go on for another lease. Sent every second at least.

    The lease counts from when the agent sent heartbeat ``beat``, the last one that was heard.
    """

    beat: int = 0


class PauseHost(Order, frozen=True, kw_only=True):
    """Stop every rank of the host (SIGSTOP to its group) and hold the clock; answered by HostPaused."""


class ResumeHost(Order, frozen=True, kw_only=True):
    """Let the clock go on, and the ranks that PauseHost stopped."""


class EndAgent(Order, frozen=True, kw_only=True):
    """All ranks are gone: clean up and exit."""


# ---- deeds: agent machine to agent shell ---------------------------------------------------------


class Deed(Action, frozen=True, kw_only=True):
    """Base of what the agent's machine asks of its shell."""


class StartProcess(Deed, frozen=True, kw_only=True):
    """Create the control block, start the program as ``rank``, register it with the guardian."""

    rank: int
    epoch: int
    restart_count: int


class SignalGroup(Deed, frozen=True, kw_only=True):
    """Send ``signal`` to the rank's process group (and for SIGKILL to all its known descendants)."""

    rank: int
    epoch: int
    signal: int


class WriteBlock(Deed, frozen=True, kw_only=True):
    """Write a verdict into one rank's control block and ring its bell."""

    rank: int
    epoch: int
    verdict: int
    kind: VerdictKind
    losses: tuple[Loss, ...] = ()
    question: int = 0


class TellRank(Deed, frozen=True, kw_only=True):
    """Send a rendezvous message (FormGroup, OpenGroup, RefuseGroup) to a rank over its socket."""

    rank: int
    order: FormGroup | OpenGroup | RefuseGroup


class ReadBlock(Deed, frozen=True, kw_only=True):
    """Sample a rank's block and send RankSampled up."""

    rank: int
    epoch: int


class AskForStack(Deed, frozen=True, kw_only=True):
    """Ask the holder of a rank's claim for its stacks, if it can be asked; the shell sends StackTaken."""

    rank: int
    epoch: int


class SendUp(Deed, frozen=True, kw_only=True):
    """Send an event to the supervisor."""

    event: AgentEvent


class SendBeat(Deed, frozen=True, kw_only=True):
    """Beat the host block and send ``HeartbeatArrived`` with this ``beat`` and the waits of the local
    ranks that hold a claim, as their blocks say.
    """

    beat: int
    is_quiet: bool = False
    """Beat the host block alone: nobody above listens."""


class ExitAgent(Deed, frozen=True, kw_only=True):
    """Release the guardian, remove the host directory, exit with ``code``."""

    code: int


AgentOrder = (
    SpawnRank
    | FormGroup
    | OpenGroup
    | RefuseGroup
    | WriteVerdict
    | StopRank
    | SampleRanks
    | TakeStack
    | RenewLease
    | PauseHost
    | ResumeHost
    | EndAgent
)
"""Orders that travel to an agent."""
