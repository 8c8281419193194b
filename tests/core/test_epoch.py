"""What the events of one epoch mean: causes and consequences."""

from __future__ import annotations

import pytest

from jlaunch.core.actions import RecordVerdict, RefuseGroup, StopRank, WriteVerdict
from jlaunch.core.cause import CauseKind
from jlaunch.core.contract import Reason, VerdictKind
from jlaunch.core.events import (
    DesyncFound,
    HeartbeatArrived,
    QuestionAnswered,
    RankClaimed,
    RankInitFailed,
    RankPaused,
    RankReported,
    RankResumed,
    RankSpawned,
)
from jlaunch.core.spec import Policy
from tests.core.driving import Driven, is_quiet, job_spec, of, raises, said, stopped, wait_for


def running(policy: Policy = Policy.RAISE, **shape: int) -> Driven:
    return Driven(job_spec(policy, **shape)).run()  # type: ignore[arg-type]


def end_all(job: Driven, *ranks: int, status: int = 0) -> None:
    for rank in ranks:
        job.end(rank, status)


# ---- deaths --------------------------------------------------------------------------------------


def test_a_death_may_come_in_two_words_or_in_one() -> None:
    job = running()
    assert raises(job.vanish(2, -9)) == {0: {2}, 1: {2}}
    end_all(job, 0, 1)
    assert job.ended.code == 137


def test_a_status_that_comes_with_the_second_word_counts() -> None:
    job = running()
    job.die(2, None)
    assert job.machine.epoch.losses.all[0].reason is Reason.EXITED
    job.vanish(2, -11)
    end_all(job, 0, 1)
    assert job.ended.code == 139
    assert job.ended.cause == "rank 2 on h0 was killed by SIGSEGV (signal 11)"


def test_a_claim_that_died_though_its_process_ended_well() -> None:
    """The holder was a grandchild whose status nobody learnt."""
    job = running()
    job.die(2, None)
    job.vanish(2, 0)
    end_all(job, 0, 1)
    assert job.ended.code == 73
    assert job.ended.cause == "rank 2 on h0 died"


def test_a_wrapper_that_fails_after_a_clean_end() -> None:
    job = running()
    job.die(2, 0)
    job.vanish(2, 3)
    end_all(job, 0, 1)
    assert job.ended.code == 3


@pytest.mark.parametrize("policy", [Policy.RAISE, Policy.STOP])
def test_a_wrapper_that_we_ended_is_no_cause(policy: Policy) -> None:
    job = running(policy)
    job.die(2, 0)
    job.stop()
    job.vanish(2, -15, by="term")
    for rank in (0, 1):
        job.vanish(rank, 0, by="term")
    assert job.ended.code == 130


def test_a_clean_phase_counts_if_the_status_is_unknown() -> None:
    job = running()
    assert raises(job.die(2, None, clean=True)) == {}
    job.vanish(2, 0)
    end_all(job, 0, 1)
    assert job.ended.code == 0


def test_two_that_crash_at_once_are_both_named() -> None:
    job = running()
    job.die(1, -11, told=(0, 2))
    job.now += 0.01
    assert raises(job.die(2, -11)) == {0: {1, 2}}
    for rank in (1, 2):
        job.vanish(rank, -11)
    job.end(0, 1)
    assert job.ended.code == 139
    assert job.ended.cause == (
        "rank 1 on h0 was killed by SIGSEGV (signal 11); rank 2 on h0 was killed by SIGSEGV (signal 11)"
    )


@pytest.mark.parametrize("status", [1, -6, None])
def test_an_exit_or_an_abort_after_being_told_is_a_consequence(status: int | None) -> None:
    job = running()
    job.die(1, -9, told=(0, 2))
    job.now += 0.01
    assert is_quiet(job.die(2, status))
    assert len(job.machine.epoch.inquest.causes) == 1


# ---- finished early ------------------------------------------------------------------------------


def test_a_survivor_that_needed_a_clean_end_names_it() -> None:
    """Scenario: rank 0 calls one more collective than rank 1, which has ended with 0."""
    job = running()
    job.end(1, 0)
    job.die(0, 1, wait=wait_for(1, seq=9))
    job.vanish(0, 1)
    job.end(2, 0)
    assert job.ended.code == 73
    assert job.ended.cause == "rank 1 finished while rank 0 waits in all_sum #9"


def test_what_the_finished_rank_had_completed_needs_nobody() -> None:
    job = running()
    job.end(1, 0)
    job.die(0, 5, wait=wait_for(1, seq=4))
    job.vanish(0, 5)
    job.end(2, 0)
    assert job.ended.code == 5


def test_a_survivor_that_catches_it_changes_nothing() -> None:
    job = running()
    job.end(1, 0)
    job.die(0, 0, wait=wait_for(1, seq=5))
    job.vanish(0, 0)
    job.end(2, 0)
    assert job.ended.code == 73


@pytest.mark.parametrize("group", [0, 7])
def test_a_heartbeat_tells_it_too_in_the_world_group(group: int) -> None:
    job = running()
    job.end(1, 0)
    job.hear(HeartbeatArrived(host=0, beat=1, waits={0: wait_for(1, 99, group=group)}), 0)
    end_all(job, 0, 2)
    assert job.ended.code == (73 if group == 0 else 0)


def test_a_question_tells_it_too() -> None:
    job = running()
    job.end(1, 0)
    job.ask(0, 1, group=7, seq=1)
    end_all(job, 0, 2)
    assert job.ended.code == 73


@pytest.mark.parametrize("policy", [Policy.STOP, Policy.RESTART])
def test_the_policy_is_applied_as_for_a_loss(policy: Policy) -> None:
    job = running(policy)
    job.end(1, 0)
    assert stopped(job.ask(0, 1)) == {0, 2}


def test_after_a_loss_nobody_has_finished_early() -> None:
    job = running()
    job.end(1, 0)
    job.end(2, -9)
    job.die(0, 1, wait=wait_for(1, 2))
    job.vanish(0, 1)
    assert job.ended.code == 137


# ---- starting ------------------------------------------------------------------------------------


def starting(policy: Policy = Policy.RAISE, **shape: int) -> Driven:
    return Driven(job_spec(policy, **shape)).start().spawn()  # type: ignore[arg-type]


def test_a_crash_before_init_refuses_those_who_come() -> None:
    job = starting()
    actions = job.vanish(2, 3, completed_seq=0)
    (refusal,) = of(RefuseGroup, actions)
    assert (refusal.losses[0].rank, refusal.losses[0].reason, refusal.why) == (
        2,
        Reason.EXITED,
        "rank 2 on h0 exited with code 3",
    )
    job.claim(0)
    job.end(0, 1)
    job.end(1, 0)
    assert job.ended.code == 3


def test_a_failure_before_init_after_a_refusal_has_a_cause_of_its_own() -> None:
    job = starting()
    job.vanish(2, 3, completed_seq=0)
    job.vanish(1, 4, completed_seq=0)
    assert [cause.status for cause in job.machine.epoch.inquest.causes] == [3, 4]


def test_a_clean_end_before_init_is_fine_until_somebody_waits() -> None:
    job = starting()
    assert of(RefuseGroup, job.vanish(1, 0)) == []
    actions = job.hear(RankClaimed(rank=0, epoch=1, pid=1))
    (refusal,) = of(RefuseGroup, actions)
    assert refusal.why == "rank 1 finished while rank 0 waits in init"
    end_all(job, 0, 2)
    assert job.ended.code == 73


def test_a_clean_end_while_somebody_waits_in_init() -> None:
    job = starting().claim(0, 1).join(0)
    assert of(RefuseGroup, job.die(1, 0)) != []
    assert "rank 1 finished while rank 0 waits in init" in said(job.done)


def test_an_init_that_fails_is_told_the_others() -> None:
    job = starting().claim(0, 1, 2).join(0)
    actions = job.hear(RankInitFailed(rank=1, epoch=1, error="no device rdma_en3"))
    (refusal,) = of(RefuseGroup, actions)
    assert refusal.losses[0].reason is Reason.INIT_FAILED
    assert refusal.why == "rank 1 on h0 failed in init: no device rdma_en3"
    assert job.hear(RankInitFailed(rank=1, epoch=1, error="again")) == []
    job.end(1, 7)
    end_all(job, 0, 2, status=1)
    assert job.ended.code == 7
    assert job.ended.cause == "rank 1 on h0 failed in init: no device rdma_en3"


def test_an_init_that_fails_in_a_program_that_goes_on_to_0() -> None:
    job = starting().claim(0, 1, 2)
    job.hear(RankInitFailed(rank=1, epoch=1, error="no device"))
    end_all(job, 0, 1, 2)
    assert job.ended.code == 69


def test_a_failed_start_ends_every_policy() -> None:
    from jlaunch.core.events import RankSpawnFailed

    job = Driven(job_spec()).start()
    job.hear(RankSpawned(rank=0, epoch=1, pid=1))
    actions = job.hear(RankSpawnFailed(rank=1, epoch=1, error="No such file: 'trian.py'"))
    assert stopped(actions) == {0, 2}
    job.hear(RankSpawnFailed(rank=2, epoch=1, error="it was stopped before it was started"))
    job.vanish(0, -15, by="term")
    assert (job.ended.code, job.ended.cause) == (
        69,
        "rank 1 on h0 could not be started: No such file: 'trian.py'",
    )


def test_the_start_timeout_names_who_is_missing() -> None:
    job = starting(per_host=7).claim(0, 1).join(0)
    job.sleep(29.0)
    assert job.state == "FORMING"
    actions = job.sleep(2.0)
    (refusal,) = of(RefuseGroup, actions)
    assert (
        "no group within 30 s after rank 0 entered init: missing rank 1 on h0 (opening its devices for "
        in (refusal.why)
    )
    assert "rank 2 on h0 (running without init for 3" in refusal.why
    assert refusal.why.endswith("and 2 more")
    assert {loss.rank for loss in refusal.losses} == {1, 2, 3, 4, 5, 6}
    assert stopped(actions) == {0, 1, 2, 3, 4, 5, 6}
    for rank in range(7):
        job.vanish(rank, -15, by="term")
    assert job.ended.code == 69


def test_the_start_timeout_waits_for_who_cannot_be_heard() -> None:
    job = starting(hosts=2, per_host=1).claim(0).join(0)
    for _ in range(50):
        job.now += 1.0
        job.beat(0)
        job.wake()
    assert "no group" not in said(job.done)
    job.beat(1)
    job.sleep(4.0)
    assert "no group" not in said(job.done)
    job.sleep(4.0)
    assert "no group within 30 s after rank 0 entered init: missing rank 1 on h1" in said(job.done)


def test_the_start_timeout_waits_for_a_pause_within_its_limit() -> None:
    """Seed 20373."""
    job = starting().claim(0, 1, 2).join(0, 1)
    job.sleep(28.0)
    job.hear(RankPaused(rank=2, epoch=1))
    job.sleep(4.5)
    job.hear(RankResumed(rank=2, epoch=1))
    job.sleep(4.5)
    assert "no group" not in said(job.done)
    job.sleep(1.0)
    assert "no group" in said(job.done)


def test_a_group_that_is_open_is_not_timed() -> None:
    job = running()
    assert job.machine.epoch.beginning.times_out_at is None
    job.sleep(100.0)
    assert job.state == "RUNNING"


# ---- desync --------------------------------------------------------------------------------------


def test_both_sides_of_a_desync_are_named_and_lost() -> None:
    job = running()
    job.hear(DesyncFound(rank=0, epoch=1, peer=1, here="all_sum of 8 float32", there="all_max of 8 float32"))
    assert of(WriteVerdict, job.done, kind=VerdictKind.STOP) == []
    assert raises(job.done) == {0: {0, 1}, 1: {0, 1}, 2: {0, 1}}
    assert of(StopRank, job.done) == []
    job.end(0, 0)
    job.end(1, 1)
    job.end(2, 1)
    assert job.ended.code == 76
    assert job.ended.cause == (
        "rank 0 on h0 and rank 1 do not do the same: "
        "rank 0 is in all_sum of 8 float32, rank 1 in all_max of 8 float32"
    )


def test_a_desync_with_nobody_is_still_one() -> None:
    job = running()
    job.hear(DesyncFound(rank=0, epoch=1, peer=99, here="a", there="b"))
    assert {loss.rank for loss in job.machine.epoch.losses.all} == {0}


def test_a_desync_with_one_who_is_dying() -> None:
    job = running()
    job.die(1, 0)
    job.hear(DesyncFound(rank=0, epoch=1, peer=1, here="a", there="b"))
    assert raises(job.done)[0] == {0, 1}
    assert raises(job.done)[2] == {0, 1}


# ---- admission -----------------------------------------------------------------------------------


def test_an_agent_speaks_for_its_own_ranks_alone() -> None:
    job = running(hosts=2, per_host=1)
    before = job.machine.dropped
    assert job.hear(RankReported(rank=0, epoch=1, numbers={}), 1) == []
    assert job.machine.dropped == before + 1


def test_questions_of_the_lost_are_not_answered() -> None:
    job = running()
    job.hear(DesyncFound(rank=0, epoch=1, peer=1, here="a", there="b"))
    assert job.ask(0, 2) == []
    job.end(2, 0)
    assert job.hear(QuestionAnswered(rank=2, epoch=1, question=1, why="late")) == []


def test_questions_while_everybody_stops_are_answered_by_the_stop() -> None:
    job = running()
    job.stop()
    assert of(RecordVerdict, job.ask(0, 1)) == []


def test_a_lost_host_is_one_cause_for_all_its_ranks() -> None:
    job = Driven(job_spec(hosts=2, per_host=2, is_local=False)).run()
    job.die(3, 0)
    job.agent_ends(1)
    (cause,) = job.machine.epoch.inquest.causes
    assert (cause.kind, cause.ranks) == (CauseKind.HOST_LOST, (2,))
    assert {loss.rank: loss.reason for loss in job.machine.epoch.losses.unclean} == {2: Reason.HOST_LOST}
