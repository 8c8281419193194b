"""Who is told of whom, when, and what comes first."""

from __future__ import annotations

import pytest

from jlaunch.core.actions import RecordVerdict, RefuseGroup, StopRank, WriteVerdict
from jlaunch.core.contract import Reason, VerdictKind
from jlaunch.core.events import HeartbeatArrived, RankPaused
from jlaunch.core.losses import CLEAN_DELAY_S, FENCE_TIMEOUT_S
from jlaunch.core.spec import Policy
from tests.core.driving import Driven, answers, is_quiet, job_spec, of, raises, stopped, wait_for


def two_hosts(policy: Policy = Policy.RAISE) -> Driven:
    """Ranks 0 and 1 on h0, 2 and 3 on h1; the group is open."""
    return Driven(job_spec(policy, hosts=2, per_host=2)).run()


def test_a_death_is_told_to_those_who_were_not_told_yet() -> None:
    job = two_hosts()
    actions = job.die(1, -9, told=(0,))
    assert raises(actions) == {2: {1}, 3: {1}}
    (write,) = of(WriteVerdict, actions)
    assert (write.host, write.ranks) == (1, (2, 3))
    (loss,) = write.losses
    assert (loss.rank, loss.reason, loss.completed_seq, loss.clean) == (1, Reason.KILLED, 4, False)
    kinds = [(record.kind, record.ranks) for record in of(RecordVerdict, actions)]
    assert kinds == [(VerdictKind.RAISE, (0,)), (VerdictKind.RAISE, (2, 3))]
    assert stopped(actions) == set()


def test_what_is_told_only_grows() -> None:
    job = two_hosts()
    job.die(1, -9, told=(0,))
    actions = job.die(3, -11)
    assert raises(actions) == {0: {1, 3}, 2: {1, 3}}


def test_a_survivor_that_dies_of_it_is_no_news() -> None:
    job = two_hosts()
    job.die(1, -9, told=(0,))
    assert is_quiet(job.die(0, 1))
    assert is_quiet(job.end(2, 0))


def test_a_clean_end_is_told_with_a_delay_and_is_no_verdict() -> None:
    job = two_hosts()
    assert of(WriteVerdict, job.die(1, 0, told=(0,))) == []
    assert of(WriteVerdict, job.die(0, 0)) == []
    actions = job.sleep(CLEAN_DELAY_S)
    assert raises(actions) == {2: {0, 1}, 3: {0, 1}}
    assert all(loss.clean for write in of(WriteVerdict, actions) for loss in write.losses)
    assert of(RecordVerdict, actions) == []


def test_a_loss_does_not_wait_for_the_delay_of_clean_ones() -> None:
    job = two_hosts()
    job.die(1, 0, told=(0,))
    actions = job.die(0, 3)
    assert raises(actions) == {2: {0, 1}, 3: {0, 1}}
    assert of(WriteVerdict, job.sleep(1.0)) == []


def test_the_fence_comes_first() -> None:
    """(b) STOP in the lost rank's own block, acknowledged, then RAISE for the others, then its end."""
    job = two_hosts()
    job.hear(RankPaused(rank=3, epoch=1))
    job.ask(0, 3)
    job.sleep(5.0)
    job.look(0, wait_for(3))
    actions = job.look(3, is_paused=True)
    (fence,) = of(WriteVerdict, actions)
    assert (fence.kind, fence.ranks, fence.host) == (VerdictKind.STOP, (3,), 1)
    assert stopped(actions) == set()
    actions = job.written(fence)
    assert raises(actions) == {0: {3}, 1: {3}, 2: {3}}
    assert actions.index(of(WriteVerdict, actions)[-1]) < actions.index(of(StopRank, actions)[0])
    assert of(StopRank, actions) == [StopRank(host=1, rank=3, epoch=1, grace_s=10.0)]


def fenced() -> Driven:
    """Ranks 2 and 3 are paused past the limit: lost and alive, their fences are up."""
    job = two_hosts()
    accuse(job)
    return job


def accuse(job: Driven) -> None:
    for rank in (2, 3):
        job.hear(RankPaused(rank=rank, epoch=1))
    job.ask(0, 2, 3)
    job.sleep(5.0)
    job.look(0, wait_for(2, 3))
    for rank in (2, 3):
        assert raises(job.look(rank, is_paused=True)) == {}


def test_every_fence_must_be_confirmed() -> None:
    job = fenced()
    first, second = of(WriteVerdict, job.done, kind=VerdictKind.STOP)
    assert raises(job.written(first)) == {}
    assert raises(job.written(second)) == {0: {2, 3}, 1: {2, 3}}


def test_a_fence_that_is_not_answered_is_given_up() -> None:
    job = fenced()
    assert raises(job.sleep(FENCE_TIMEOUT_S - 0.1)) == {}
    assert raises(job.sleep(0.2)) == {0: {2, 3}, 1: {2, 3}}


def test_a_fence_on_a_silent_host_is_given_up() -> None:
    job = two_hosts()
    accuse(job)
    # h1 was heard just now; then it is silent, and that is noticed before the fence's own limit.
    assert raises(job.sleep(0.9, beating=False)) == {}
    assert raises(job.sleep(0.2, beating=False)) == {0: {2, 3}, 1: {2, 3}}


@pytest.mark.parametrize("how", ["died", "exited"])
def test_a_fenced_rank_that_ends_needs_no_fence(how: str) -> None:
    job = fenced()
    first, _ = of(WriteVerdict, job.done, kind=VerdictKind.STOP)
    job.written(first)
    actions = job.die(3, 1) if how == "died" else job.vanish(3, 1)
    assert raises(actions) == {0: {2, 3}, 1: {2, 3}}


def test_a_question_about_a_lost_rank_is_answered_with_the_loss() -> None:
    job = two_hosts()
    job.die(1, -9, told=(0,))
    actions = job.ask(0, 1, question=4)
    (write,) = of(WriteVerdict, actions)
    assert (write.kind, write.ranks, write.question) == (VerdictKind.RAISE, (0,), 4)
    assert answers(actions) == {}


def test_a_question_about_a_lost_rank_waits_for_its_fence() -> None:
    job = fenced()
    assert of(WriteVerdict, job.ask(0, 3)) == []


def test_under_stop_nobody_is_told_to_raise() -> None:
    job = two_hosts(Policy.STOP)
    actions = job.die(1, -9, told=(0,))
    assert raises(actions) == {}
    assert stopped(actions) == {0, 1, 2, 3}
    (record,) = of(RecordVerdict, actions)
    assert (record.kind, record.ranks) == (VerdictKind.STOP, (0,))


def test_a_loss_before_the_group_is_open_is_a_refusal() -> None:
    job = Driven(job_spec(hosts=2, per_host=2)).start().spawn().claim(0, 2).join(0)
    actions = job.die(2, -9, completed_seq=0)
    assert {(refusal.host, refusal.losses[0].rank) for refusal in of(RefuseGroup, actions)} == {
        (0, 2),
        (1, 2),
    }
    assert raises(actions) == {}
    assert raises(job.beat()) == {}


def test_a_heartbeat_is_quiet() -> None:
    job = two_hosts()
    assert job.hear(HeartbeatArrived(host=0, beat=1), 0) == []
