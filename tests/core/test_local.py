"""The ranks of one host: orders, facts, the fast path, questions."""

from __future__ import annotations

import pytest

from jlaunch.core.actions import (
    FormGroup,
    OpenGroup,
    ReadBlock,
    RefuseGroup,
    SampleRanks,
    SignalGroup,
    SpawnRank,
    StartProcess,
    StopRank,
    TellRank,
    WriteBlock,
    WriteVerdict,
)
from jlaunch.core.contract import Reason, VerdictKind
from jlaunch.core.events import (
    DeadlineAsked,
    DesyncFound,
    Loss,
    QuestionAnswered,
    RankClaimed,
    RankFormed,
    RankInitFailed,
    RankJoined,
    RankPaused,
    RankReported,
    RankResumed,
    RankSpawned,
    RankSpawnFailed,
    VerdictWritten,
)
from jlaunch.core.facts import (
    ClaimTaken,
    DesyncSeen,
    GroupVanished,
    ProcessContinued,
    ProcessStarted,
    ProcessStartFailed,
    ProcessStopped,
    QuestionFound,
    RankSpoke,
)
from jlaunch.core.messages import Formed, InitFailed, Join, Report
from jlaunch.core.process import ANSWER_PATIENCE_S, OWN_VERDICTS
from tests.core.agent_driving import Agent, of, sent, written
from tests.core.driving import wait_for

LOSS = (Loss(rank=0, reason=Reason.KILLED, completed_seq=3),)
CLEAN = (Loss(rank=0, reason=Reason.EXITED, completed_seq=3, clean=True),)


def verdict(kind: VerdictKind, *ranks: int, number: int = 5, epoch: int = 1, **more: object) -> WriteVerdict:
    return WriteVerdict(host=1, verdict=number, epoch=epoch, kind=kind, ranks=ranks, **more)  # type: ignore[arg-type]


# ---- starting ------------------------------------------------------------------------------------


def test_a_rank_is_started_once() -> None:
    agent = Agent().start()
    assert agent.spawn(2) == [StartProcess(rank=2, epoch=1, restart_count=0)]
    assert agent.spawn(2) == []
    assert sent(agent.feed(ProcessStarted(rank=2, epoch=1, pid=9))) == [RankSpawned(rank=2, epoch=1, pid=9)]
    assert agent.feed(ProcessStarted(rank=2, epoch=1, pid=10)) == []
    assert agent.machine.dropped == 2


def test_a_rank_of_another_host_is_not_ours() -> None:
    agent = Agent().start()
    assert agent.feed(SpawnRank(host=1, rank=0, epoch=1, restart_count=0)) == []


def test_a_start_that_fails_is_said() -> None:
    agent = Agent().start()
    agent.spawn(2)
    deeds = agent.feed(ProcessStartFailed(rank=2, epoch=1, error="no such file"))
    assert sent(deeds) == [RankSpawnFailed(rank=2, epoch=1, error="no such file")]
    assert agent.machine.living == ()


def test_at_most_one_live_process_per_rank() -> None:
    """The next epoch's is refused while the last one's lives."""
    agent = Agent().start().run(2)
    deeds = agent.spawn(2, epoch=2)
    assert sent(deeds) == [
        RankSpawnFailed(rank=2, epoch=2, error="its process of epoch 1 (pid 1002) is still alive")
    ]
    agent.end(2, 0)
    assert agent.spawn(2, epoch=2) == [StartProcess(rank=2, epoch=2, restart_count=1)]
    assert agent.spawn(3, epoch=1) == []


def test_a_stop_that_overtakes_the_start() -> None:
    agent = Agent().start()
    stop = StopRank(host=1, rank=2, epoch=1, grace_s=10.0)
    unborn = RankSpawnFailed(rank=2, epoch=1, error="it was stopped before it was started")
    assert sent(agent.feed(stop)) == [unborn]
    assert sent(agent.spawn(2)) == [unborn]


def test_a_stop_while_it_starts() -> None:
    agent = Agent().start()
    agent.spawn(2)
    assert agent.feed(StopRank(host=1, rank=2, epoch=1, grace_s=10.0)) == []
    deeds = agent.feed(ProcessStarted(rank=2, epoch=1, pid=9))
    assert sent(deeds) == [RankSpawned(rank=2, epoch=1, pid=9)]
    assert of(SignalGroup, deeds) == [SignalGroup(rank=2, epoch=1, signal=15)]


def test_a_stop_of_an_old_epoch_or_of_nobody() -> None:
    agent = Agent().start().run(2)
    agent.end(2, 0)
    agent.run(2, epoch=2)
    assert agent.feed(StopRank(host=1, rank=2, epoch=1, grace_s=0.0)) == []
    assert agent.feed(StopRank(host=1, rank=0, epoch=2, grace_s=0.0)) == []


# ---- rendezvous ----------------------------------------------------------------------------------


def test_the_rendezvous_goes_through() -> None:
    agent = Agent().start().run(2, 3)
    assert sent(agent.feed(ClaimTaken(rank=2, epoch=1, pid=9))) == [RankClaimed(rank=2, epoch=1, pid=9)]
    join = RankSpoke(body=Join(rank=2, epoch=1, address=b"x"))
    assert sent(agent.feed(join)) == [RankJoined(rank=2, epoch=1, address=b"x")]
    form = FormGroup(host=1, epoch=1, addresses=(b"x",))
    assert agent.feed(form) == [TellRank(rank=2, order=form)]
    assert sent(agent.feed(RankSpoke(body=Formed(rank=2, epoch=1)))) == [RankFormed(rank=2, epoch=1)]
    opened = OpenGroup(host=1, epoch=1)
    assert agent.feed(opened) == [TellRank(rank=2, order=opened)]


def test_a_claim_may_be_seen_after_the_join() -> None:
    """Doorbell and socket are two ways; the supervisor must hear of the claim first."""
    agent = Agent().start().run(2)
    deeds = agent.feed(RankSpoke(body=Join(rank=2, epoch=1, address=b"x")))
    assert sent(deeds) == [
        RankClaimed(rank=2, epoch=1, pid=1002),
        RankJoined(rank=2, epoch=1, address=b"x"),
    ]
    assert agent.feed(ClaimTaken(rank=2, epoch=1, pid=9)) == []


def test_reports_and_failures_of_init_go_up() -> None:
    agent = Agent().start().run(2).claim(2)
    failed = RankSpoke(body=InitFailed(rank=2, epoch=1, error="no device"))
    assert sent(agent.feed(failed)) == [RankInitFailed(rank=2, epoch=1, error="no device")]
    report = RankSpoke(body=Report(rank=2, epoch=1, numbers={"step": 1.0}))
    assert sent(agent.feed(report)) == [RankReported(rank=2, epoch=1, numbers={"step": 1.0})]


def test_a_refusal_reaches_those_in_init_and_late_comers() -> None:
    agent = Agent().start().run(2, 3).claim(2)
    agent.feed(RankSpoke(body=Join(rank=2, epoch=1, address=b"x")))
    refusal = RefuseGroup(host=1, epoch=1, losses=LOSS, why="rank 0 was killed")
    assert agent.feed(refusal) == [TellRank(rank=2, order=refusal)]
    deeds = agent.feed(RankSpoke(body=Join(rank=3, epoch=1, address=b"y")))
    assert of(TellRank, deeds) == [TellRank(rank=3, order=refusal)]
    assert sent(deeds) == [RankClaimed(rank=3, epoch=1, pid=1003)]


def test_a_refusal_ends_with_its_epoch() -> None:
    agent = Agent().start().run(2)
    agent.feed(RefuseGroup(host=1, epoch=1, losses=LOSS, why="no"))
    agent.end(2, 1)
    agent.run(2, epoch=2)
    assert agent.feed(RefuseGroup(host=1, epoch=1, losses=LOSS, why="no")) == []
    assert agent.feed(OpenGroup(host=1, epoch=1)) == []
    join = RankSpoke(body=Join(rank=2, epoch=2, address=b"y"))
    assert RankJoined(rank=2, epoch=2, address=b"y") in sent(agent.feed(join))


@pytest.mark.parametrize("rank", [0, 3])
def test_a_word_of_no_process_is_dropped(rank: int) -> None:
    agent = Agent().start().run(2)
    agent.spawn(3)
    assert agent.feed(RankSpoke(body=Formed(rank=rank, epoch=1))) == []
    agent.exit(2, 0)
    assert agent.feed(RankSpoke(body=Formed(rank=2, epoch=1))) == []
    assert agent.machine.dropped == 2


# ---- verdicts ------------------------------------------------------------------------------------


def test_a_verdict_is_written_and_acknowledged() -> None:
    agent = Agent().start().form(2, 3)
    deeds = agent.feed(verdict(VerdictKind.RAISE, 3, 2, losses=LOSS))
    assert [write.rank for write in of(WriteBlock, deeds)] == [3, 2]
    assert sent(deeds) == [VerdictWritten(host=1, verdict=5)]
    again = agent.feed(verdict(VerdictKind.RAISE, 3, 2, losses=LOSS))
    assert (written(again), sent(again)) == ({}, [VerdictWritten(host=1, verdict=5)])


def test_a_verdict_for_the_dead_or_another_epoch_is_acknowledged_only() -> None:
    agent = Agent().start().form(2, 3)
    agent.exit(3, 0)
    for order in (verdict(VerdictKind.STOP, 3), verdict(VerdictKind.STOP, 2, epoch=2)):
        deeds = agent.feed(order)
        assert (written(deeds), sent(deeds)) == ({}, [VerdictWritten(host=1, verdict=5)])


def test_raise_does_not_soften_a_stop() -> None:
    agent = Agent().start().form(2)
    agent.feed(verdict(VerdictKind.STOP, 2))
    deeds = agent.feed(verdict(VerdictKind.RAISE, 2, losses=LOSS))
    assert written(deeds) == {2: (VerdictKind.STOP, {0})}


def test_looks_are_for_those_who_hold_a_claim() -> None:
    agent = Agent().start().form(2).run(3)
    order = SampleRanks(host=1, epoch=1, ranks=(2, 3, 4))
    assert agent.feed(order) == [ReadBlock(rank=2, epoch=1)]


# ---- questions -----------------------------------------------------------------------------------


def test_a_question_goes_up_once() -> None:
    agent = Agent().start().form(2)
    assert sent(agent.ask(2)) == [DeadlineAsked(rank=2, epoch=1, question=1, wait=wait_for(0))]
    assert agent.ask(2) == []
    assert sent(agent.ask(2, 2)) != []


def test_an_answer_is_written_once() -> None:
    agent = Agent().start().form(2)
    agent.ask(2)
    order = verdict(VerdictKind.KEEP_WAITING, 2, question=1)
    (write,) = of(WriteBlock, agent.feed(order))
    assert (write.kind, write.question, write.verdict) == (VerdictKind.KEEP_WAITING, 1, 5)
    assert of(WriteBlock, agent.feed(order)) == []
    assert of(WriteBlock, agent.sleep(ANSWER_PATIENCE_S)) == []


def test_a_question_that_nobody_answers_is_answered_here() -> None:
    agent = Agent().start().form(2)
    agent.ask(2)
    deeds = agent.sleep(ANSWER_PATIENCE_S)
    (write,) = of(WriteBlock, deeds)
    assert (write.kind, write.question, write.verdict) == (VerdictKind.KEEP_WAITING, 1, OWN_VERDICTS + 1)
    answered = next(event for event in sent(deeds) if isinstance(event, QuestionAnswered))
    assert (answered.rank, answered.question) == (2, 1)
    assert answered.why == "no answer came within 2 s; the lease lapses in 58.0 s"
    assert of(WriteBlock, agent.feed(verdict(VerdictKind.KEEP_WAITING, 2, question=1))) == []


def test_a_loss_is_an_answer_too() -> None:
    agent = Agent().start().form(2)
    agent.ask(2)
    (write,) = of(WriteBlock, agent.feed(verdict(VerdictKind.RAISE, 2, losses=LOSS, question=1)))
    assert (write.kind, write.question) == (VerdictKind.RAISE, 1)
    assert of(WriteBlock, agent.sleep(ANSWER_PATIENCE_S)) == []
    assert agent.ask(2, 2) == []
    assert of(WriteBlock, agent.feed(verdict(VerdictKind.KEEP_WAITING, 2, question=2))) == []


def test_a_clean_loss_is_none() -> None:
    agent = Agent().start().form(2)
    agent.ask(2)
    agent.feed(verdict(VerdictKind.RAISE, 2, losses=CLEAN))
    assert of(WriteBlock, agent.sleep(ANSWER_PATIENCE_S), kind=VerdictKind.KEEP_WAITING) != []


def test_who_is_being_ended_is_not_asked_for() -> None:
    agent = Agent().start().form(2)
    agent.feed(StopRank(host=1, rank=2, epoch=1, grace_s=10.0))
    assert agent.ask(2) == []


# ---- the rest ------------------------------------------------------------------------------------


def test_pauses_are_told_once_each() -> None:
    agent = Agent().start().form(2)
    stopped = ProcessStopped(rank=2, epoch=1, signal=19)
    assert sent(agent.feed(stopped)) == [RankPaused(rank=2, epoch=1, signal=19)]
    assert agent.feed(stopped) == []
    continued = ProcessContinued(rank=2, epoch=1)
    assert sent(agent.feed(continued)) == [RankResumed(rank=2, epoch=1)]
    assert agent.feed(continued) == []


def test_a_desync_goes_up_unless_it_is_being_ended() -> None:
    agent = Agent().start().form(2)
    seen = DesyncSeen(rank=2, epoch=1, peer=0, here="a", there="b")
    assert sent(agent.feed(seen)) == [DesyncFound(rank=2, epoch=1, peer=0, here="a", there="b")]
    agent.feed(StopRank(host=1, rank=2, epoch=1, grace_s=10.0))
    assert agent.feed(seen) == []


def test_facts_of_nobody_and_out_of_order_are_dropped() -> None:
    agent = Agent().start().run(2)
    wait = wait_for(0)
    for fact in (
        QuestionFound(rank=0, epoch=1, question=1, wait=wait),
        QuestionFound(rank=2, epoch=2, question=1, wait=wait),
        GroupVanished(rank=2, epoch=1),
    ):
        assert agent.feed(fact) == []
    agent.end(2, 0)
    assert agent.feed(ClaimTaken(rank=2, epoch=1, pid=1)) == []
    assert agent.machine.dropped == 4
