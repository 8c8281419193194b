"""Any order of events keeps the promises: a job machine and its agents, fed at random by hypothesis.

Not every history is one that the world could write, and that is the point: what does not fit must be
dropped, and whatever is let in must leave the invariants standing.
"""

from __future__ import annotations

import math
import random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jlaunch.core.actions import (
    Action,
    EndJob,
    Order,
    RecordVerdict,
    SpawnRank,
    StartAgent,
    WriteVerdict,
)
from jlaunch.core.contract import Collective, Reason, VerdictKind
from jlaunch.core.events import (
    ActionFailed,
    AgentExited,
    AgentHeard,
    AgentReady,
    DeadlineAsked,
    DesyncFound,
    HeartbeatArrived,
    HostPaused,
    HostSwept,
    JobStarted,
    LeaseLapsed,
    PauseRequested,
    QuestionAnswered,
    RankClaimed,
    RankDied,
    RankExited,
    RankFormed,
    RankInitFailed,
    RankJoined,
    RankPaused,
    RankReported,
    RankResumed,
    RankSampled,
    RankSpawned,
    RankSpawnFailed,
    RankUnkillable,
    ResumeRequested,
    StackTaken,
    StopRequested,
    VerdictWritten,
)
from jlaunch.core.job import JobMachine
from jlaunch.core.job_table import TERMINAL
from jlaunch.core.process import KILL_BOUND_S
from jlaunch.core.snapshot import encode_snapshot
from jlaunch.core.spec import Policy
from tests.core.driving import TIMEOUTS, job_spec, sample, wait_for

RANKS, HOSTS = 4, 2
some_rank = st.integers(0, RANKS - 1)
some_host = st.integers(0, HOSTS - 1)
some_status = st.sampled_from([0, 0, 0, 1, 3, -6, -9, -11, -15])
some_wait = st.builds(
    lambda ranks, seq, kind: wait_for(*sorted(ranks), seq=seq, kind=kind),
    st.sets(st.integers(-1, RANKS)),
    st.integers(1, 9),
    st.sampled_from([Collective.ALL_SUM, Collective.ALL_SUM, Collective.RECV]),
)


class AnyOrder(RuleBasedStateMachine):
    """The job machine, what it ordered, and what must hold of that."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.lives = [0] * HOSTS
        self.spawned: set[tuple[int, int]] = set()
        self.confirmed: set[tuple[int, int]] = set()
        self.fences: dict[int, int] = {}
        self.fenced_at: dict[int, float] = {}
        self.questions: set[tuple[int, int, int]] = set()
        self.answers: dict[tuple[int, int, int], int] = {}
        self.end: EndJob | None = None
        self.had_loss = False
        self.gone_at: dict[int, float] = {}

    @initialize(policy=st.sampled_from([Policy.RAISE, Policy.WAIT, Policy.STOP, Policy.RESTART]))
    def begin(self, policy: Policy) -> None:
        spec = job_spec(policy, hosts=HOSTS, per_host=RANKS // HOSTS, max_restarts=2)
        self.machine = JobMachine(spec, rng=random.Random(1))
        self.feed(JobStarted())

    # ---- feeding ---------------------------------------------------------------------------------

    def feed(self, event: Any) -> None:
        was_over = self.machine.state in TERMINAL
        actions = self.machine.handle(event, self.now)
        self.machine.check()
        assert not (was_over and actions), "a terminal job acted"
        for action in actions:
            self.note(action)

    def hear(self, event: Any, host: int | None = None) -> None:
        if host is None:
            host = self.machine.spec.placement[event.rank]
        self.feed(AgentHeard(host=host, incarnation=f"{host}.{self.lives[host]}", event=event))

    def note(self, action: Action) -> None:
        """Every action, held against the promises."""
        assert self.end is None, f"{action} after the end"
        if isinstance(action, StartAgent):
            self.lives[action.host] += 1
            self.gone_at.pop(action.host, None)
        elif isinstance(action, SpawnRank):
            self.note_spawn(action)
        elif isinstance(action, WriteVerdict):
            self.note_write(action)
        elif isinstance(action, EndJob):
            self.end = action
        elif isinstance(action, RecordVerdict):
            assert action.why
        if isinstance(action, Order):
            assert action.host in (0, 1)

    def note_spawn(self, spawn: SpawnRank) -> None:
        """Nobody is spawned twice, nor before every old rank is gone."""
        key = (spawn.rank, spawn.epoch)
        assert key not in self.spawned
        assert spawn.epoch == self.machine.epoch.number
        assert spawn.restart_count == spawn.epoch - 1
        old = {each for each in self.spawned if each[1] < spawn.epoch}
        assert old <= self.confirmed, f"{spawn} while {old - self.confirmed} may live"
        self.spawned.add(key)
        self.fences.clear()
        self.had_loss = False

    def note_write(self, write: WriteVerdict) -> None:
        if write.kind is VerdictKind.STOP:
            (rank,) = write.ranks
            self.fences[write.verdict] = rank
            self.fenced_at[rank] = self.now
        if write.kind is VerdictKind.RAISE:
            for loss in write.losses:
                is_shared = loss.reason is Reason.DESYNC  # told with the others', and read past by itself
                assert is_shared or loss.rank not in write.ranks, "a rank is told its own loss"
                assert loss.rank not in self.fences.values(), "raise before the fence is written"
                self.had_loss = self.had_loss or not loss.clean
        if write.question:
            key = (write.ranks[0], write.epoch, write.question)
            self.answers[key] = self.answers.get(key, 0) + 1
            assert self.answers[key] == 1, f"question {key} answered twice"
            assert key in self.questions, f"an answer to no question: {key}"

    @property
    def epoch(self) -> int:
        return self.machine.epoch.number

    # ---- agents ----------------------------------------------------------------------------------

    @rule(host=some_host)
    def agent_comes(self, host: int) -> None:
        self.hear(AgentReady(host=host, incarnation=f"{host}.{self.lives[host]}", pid=9), host)

    @rule(host=some_host, beat=st.integers(0, 50), ranks=st.dictionaries(some_rank, some_wait))
    def agent_beats(self, host: int, beat: int, ranks: dict[int, Any]) -> None:
        self.hear(HeartbeatArrived(host=host, beat=beat, waits=ranks), host)

    @rule(host=some_host, status=st.one_of(st.none(), some_status))
    def agent_ends(self, host: int, status: int | None) -> None:
        self.give_up_fences(host)
        self.gone_at[host] = self.now + TIMEOUTS.grace_s + KILL_BOUND_S
        self.feed(AgentExited(host=host, status=status, incarnation=f"{host}.{self.lives[host]}"))

    @rule(host=some_host)
    def guardian_sweeps(self, host: int) -> None:
        if self.machine.fleet.is_lost(host):
            self.confirm_host(host)
        self.feed(HostSwept(host=host))

    @rule(host=some_host)
    def lease_lapses(self, host: int) -> None:
        self.give_up_fences(host)
        self.hear(LeaseLapsed(host=host), host)

    @rule(span_s=st.floats(0, 1e5), is_resumed=st.booleans())
    def is_paused(self, span_s: float, is_resumed: bool) -> None:
        """Ctrl-Z, and perhaps ``fg``: whatever else comes meanwhile is let in as ever."""
        self.feed(PauseRequested())
        self.now += span_s
        if is_resumed:
            self.feed(ResumeRequested())

    @rule(host=some_host)
    def host_is_held(self, host: int) -> None:
        self.hear(HostPaused(host=host), host)

    @rule()
    def goes_on(self) -> None:
        self.feed(ResumeRequested())

    @rule(host=some_host)
    def start_fails(self, host: int) -> None:
        if not self.machine.fleet.machines[host].is_connected:
            self.feed(ActionFailed(action="StartAgent", error="no route", host=host))

    def give_up_fences(self, host: int) -> None:
        """Nobody is left there who could write them."""
        for rank in self.machine.spec.ranks_of(host):
            self.unfence(rank)

    def confirm_lost_hosts(self) -> None:
        """Guardians have ended the ranks of dead agents, lapsed leases those of silent ones."""
        for host, machine in enumerate(self.machine.fleet.machines):
            silent_until = (machine.heard_at or 0.0) + TIMEOUTS.lease_s + TIMEOUTS.grace_s + KILL_BOUND_S
            if self.now >= min(self.gone_at.get(host, math.inf), silent_until):
                self.confirm_host(host)

    def confirm_host(self, host: int) -> None:
        ranks = self.machine.spec.ranks_of(host)
        self.confirmed |= {(rank, self.epoch) for rank in ranks}

    # ---- ranks -----------------------------------------------------------------------------------

    @rule(rank=some_rank, lag=st.integers(0, 1))
    def rank_advances(self, rank: int, lag: int) -> None:
        """Its next step, of this epoch or of the last."""
        epoch = self.epoch - lag
        step = {
            "SPAWNING": RankSpawned(rank=rank, epoch=epoch, pid=1),
            "RUNNING": RankClaimed(rank=rank, epoch=epoch, pid=1),
            "CLAIMED": RankJoined(rank=rank, epoch=epoch, address=b"x"),
            "JOINED": RankFormed(rank=rank, epoch=epoch),
        }.get(self.machine.epoch.ranks[rank].state.name)
        if step is not None:
            self.hear(step)

    @rule()
    def all_advance(self) -> None:
        """The way to an open group, which single steps would take for ever to find."""
        for host in range(HOSTS):
            self.agent_comes(host)
        for _ in range(4):
            for rank in range(RANKS):
                self.rank_advances(rank, 0)

    @rule(rank=some_rank, which=st.integers(0, 5))
    def rank_says_anything_out_of_order(self, rank: int, which: int) -> None:
        at = {"rank": rank, "epoch": self.epoch}
        events = (
            RankSpawned(**at, pid=1),
            RankClaimed(**at, pid=1),
            RankJoined(**at, address=b"x"),
            RankFormed(**at),
            RankReported(**at, numbers={"step": 1.0}),
            StackTaken(rank=rank, epoch=self.epoch, lines=('  File "/a.py", line 1 in f',)),
        )
        self.hear(events[which])

    @rule(rank=some_rank)
    def init_fails(self, rank: int) -> None:
        self.hear(RankInitFailed(rank=rank, epoch=self.epoch, error="no device"))

    @rule(rank=some_rank)
    def spawn_fails(self, rank: int) -> None:
        if self.machine.epoch.ranks[rank].accepts(RankSpawnFailed(rank=rank, epoch=self.epoch, error="")):
            self.confirmed.add((rank, self.epoch))
        self.hear(RankSpawnFailed(rank=rank, epoch=self.epoch, error="no such file"))

    @rule(rank=some_rank, status=st.one_of(st.none(), some_status), told=st.sets(some_rank), wait=some_wait)
    def rank_dies(self, rank: int, status: int | None, told: set[int], wait: Any) -> None:
        mates = tuple(sorted(told - {rank}))
        self.unfence(rank)
        self.hear(
            RankDied(rank=rank, epoch=self.epoch, status=status, completed_seq=3, told=mates, wait=wait)
        )

    @rule(rank=some_rank, status=some_status, by=st.sampled_from(["itself", "term", "kill"]))
    def rank_exits(self, rank: int, status: int, by: str) -> None:
        self.confirmed.add((rank, self.epoch))
        self.unfence(rank)
        self.hear(RankExited(rank=rank, epoch=self.epoch, status=status, by=by, completed_seq=3))

    @rule(rank=some_rank)
    def kill_fails(self, rank: int) -> None:
        self.hear(RankUnkillable(rank=rank, epoch=self.epoch, pid=1))

    @rule(rank=some_rank, is_paused=st.booleans())
    def rank_pauses(self, rank: int, is_paused: bool) -> None:
        event = RankPaused if is_paused else RankResumed
        self.hear(event(rank=rank, epoch=self.epoch))

    # ---- waits -----------------------------------------------------------------------------------

    @rule(rank=some_rank, question=st.integers(1, 6), wait=some_wait)
    def rank_asks(self, rank: int, question: int, wait: Any) -> None:
        self.questions.add((rank, self.epoch, question))
        self.hear(DeadlineAsked(rank=rank, epoch=self.epoch, question=question, wait=wait))

    @rule(rank=some_rank, question=st.integers(1, 6))
    def agent_answers(self, rank: int, question: int) -> None:
        self.hear(QuestionAnswered(rank=rank, epoch=self.epoch, question=question, why="alone"))

    @rule(
        rank=some_rank, progress=st.integers(0, 2), wait=st.one_of(st.none(), some_wait), stop=st.booleans()
    )
    def look_comes(self, rank: int, progress: int, wait: Any, stop: bool) -> None:
        look = sample(wait, progress=progress, is_paused=stop)
        self.hear(RankSampled(rank=rank, epoch=self.epoch, sample=look))

    @rule(rank=some_rank, peer=st.integers(-1, RANKS))
    def desync(self, rank: int, peer: int) -> None:
        self.hear(DesyncFound(rank=rank, epoch=self.epoch, peer=peer, here="a", there="b"))

    @precondition(lambda self: self.fences)
    @rule(data=st.data())
    def fence_is_written(self, data: st.DataObject) -> None:
        verdict = data.draw(st.sampled_from(sorted(self.fences)))
        rank = self.fences.pop(verdict)
        host = self.machine.spec.placement[rank]
        self.hear(VerdictWritten(host=host, verdict=verdict), host)

    def unfence(self, rank: int) -> None:
        self.fences = {verdict: each for verdict, each in self.fences.items() if each != rank}

    # ---- time and people -------------------------------------------------------------------------

    @rule(span_s=st.sampled_from([0.01, 0.3, 1.1, 6.0, 30.0, 90.0]))
    def time_passes(self, span_s: float) -> None:
        self.now += span_s
        if span_s >= 1.0:
            self.fences.clear()
        self.confirm_lost_hosts()
        deadline = self.machine.next_deadline()
        if deadline is not None and deadline <= self.now:
            for action in self.machine.wake(self.now):
                self.note(action)
            self.machine.check()

    @rule()
    def timer_fires_exactly(self) -> None:
        deadline = self.machine.next_deadline()
        if deadline is None:
            return
        self.now = max(self.now, deadline)
        self.fences = {v: r for v, r in self.fences.items() if self.now - self.fenced_at[r] < 1.0}
        self.confirm_lost_hosts()
        for host in range(HOSTS):
            machine = self.machine.fleet.machines[host]
            if machine.is_connected and machine.silence_s(self.now) >= 2.5:
                self.give_up_fences(host)
        for action in self.machine.wake(self.now):
            self.note(action)
        self.machine.check()

    @precondition(lambda self: self.machine.state in TERMINAL or self.now > 20)
    @rule(signal=st.sampled_from([1, 2, 3, 15]))
    def person_stops(self, signal: int) -> None:
        self.feed(StopRequested(signal=signal))

    # ---- what must hold --------------------------------------------------------------------------

    @invariant()
    def the_end_is_what_happened(self) -> None:
        if self.end is None:
            assert self.machine.state not in TERMINAL
            return
        assert self.machine.state in TERMINAL
        assert self.machine.next_deadline() is None
        if self.had_loss and self.spawned:
            assert self.end.code != 0
        if self.end.code == 0:
            assert self.end.cause == ""
            last = {(rank, self.epoch) for rank in range(RANKS)}
            assert last <= self.confirmed
        else:
            assert self.end.cause

    @invariant()
    def the_snapshot_can_be_shown(self) -> None:
        snapshot = self.machine.snapshot(self.now)
        assert encode_snapshot(snapshot)
        assert len(snapshot.ranks) == RANKS

    @invariant()
    def a_deadline_is_not_forgotten(self) -> None:
        """Unless it is over, or a person has it paused, something will happen even if nobody speaks any more."""
        if self.machine.state not in TERMINAL and not self.machine.pause.is_on:
            assert self.machine.next_deadline() is not None


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestAnyOrder = AnyOrder.TestCase
