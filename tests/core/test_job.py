"""The life of a job: agents, epochs, the end."""

from __future__ import annotations

import msgspec
import pytest

from jlaunch.core.actions import (
    EndAgent,
    EndJob,
    OpenGroup,
    Say,
    SpawnRank,
    StartAgent,
    StopRank,
)
from jlaunch.core.events import (
    ActionFailed,
    JobStarted,
    RankSpawned,
    RankUnkillable,
    VerdictWritten,
)
from jlaunch.core.job_table import TERMINAL, TRANSITIONS, JobState
from jlaunch.core.process import KILL_BOUND_S
from jlaunch.core.spec import Policy
from tests.core.driving import TIMEOUTS, Driven, job_spec, of, raises, said, stopped

ALL = (Policy.RAISE, Policy.WAIT, Policy.STOP, Policy.RESTART)


def running(policy: Policy = Policy.RAISE, **shape: int) -> Driven:
    """A job whose group is open."""
    return Driven(job_spec(policy, **shape)).run()  # type: ignore[arg-type]


# ---- from the start to a good end ----------------------------------------------------------------


def test_agents_first_then_ranks() -> None:
    job = Driven(job_spec(hosts=2, per_host=2))
    assert job.feed(JobStarted()) == [StartAgent(host=0), StartAgent(host=1)]
    assert of(SpawnRank, job.ready(1)) == []
    assert of(SpawnRank, job.ready(0)) == [
        SpawnRank(host=rank // 2, rank=rank, epoch=1, restart_count=0) for rank in range(4)
    ]
    assert job.state == "FORMING"


def test_the_group_opens_when_all_have_formed() -> None:
    job = running(hosts=2, per_host=2)
    assert of(OpenGroup, job.done) == [OpenGroup(host=0, epoch=1), OpenGroup(host=1, epoch=1)]
    assert job.state == "RUNNING"


@pytest.mark.parametrize("policy", ALL)
def test_a_good_end_is_0(policy: Policy) -> None:
    job = running(policy)
    for rank in range(3):
        job.end(rank, 0)
    assert job.ended == EndJob(code=0, cause="", tails={})
    assert job.done[-2:] == [EndAgent(host=0), job.ended]
    assert job.state == "SUCCEEDED"


@pytest.mark.parametrize("policy", ALL)
def test_a_program_that_never_enters_init_just_runs(policy: Policy) -> None:
    job = Driven(job_spec(policy)).start().spawn()
    assert job.machine.snapshot(job.now).phase == "running"
    job.sleep(10 * TIMEOUTS.start_timeout_s)
    for rank in range(3):
        job.vanish(rank, 0)
    assert job.ended.code == 0


def test_a_host_without_ranks_gets_no_agent() -> None:
    spec = msgspec.structs.replace(job_spec(hosts=2, per_host=1), placement=(1,))
    assert Driven(spec).feed(JobStarted()) == [StartAgent(host=1)]


@pytest.mark.parametrize("state", JobState)
def test_terminal_states_are_final(state: JobState) -> None:
    assert (state in TERMINAL) == (state not in {before for before, _ in TRANSITIONS})


def test_a_terminal_job_never_acts() -> None:
    job = running()
    for rank in range(3):
        job.end(rank, 0)
    assert job.stop() == job.beat() == job.wake() == []
    assert job.machine.next_deadline() is None
    assert job.machine.dropped > 0


# ---- what one death leads to ---------------------------------------------------------------------


@pytest.mark.parametrize("policy", [Policy.RAISE, Policy.WAIT])
@pytest.mark.parametrize(("status", "code"), [(3, 3), (-9, 137), (-11, 139)])
def test_survivors_run_on_and_the_root_cause_is_the_code(policy: Policy, status: int, code: int) -> None:
    job = running(policy)
    assert raises(job.end(2, status)) == {0: {2}, 1: {2}}
    assert job.state == "RUNNING"
    job.end(0, 0)
    job.end(1, 1)
    assert job.ended.code == code
    assert job.ended.cause.startswith("rank 2 on h0 ")
    assert job.state == "FAILED"


def test_stop_ends_everybody() -> None:
    job = running(Policy.STOP)
    assert stopped(job.die(2, 3)) == {0, 1, 2}
    assert job.state == "DRAINING"
    job.vanish(2, 3, tail=("Traceback", "ValueError"))
    job.vanish(0, 1, by="term")
    job.vanish(1, -15, by="term")
    assert (job.ended.code, job.ended.tails) == (3, {2: ("Traceback", "ValueError")})


def test_restart_begins_when_the_last_is_gone() -> None:
    job = running(Policy.RESTART)
    job.end(2, 3)
    job.vanish(0, 1, by="term")
    assert of(SpawnRank, job.done, epoch=2) == []
    actions = job.vanish(1, -15, by="term")
    assert [(spawn.rank, spawn.restart_count) for spawn in of(SpawnRank, actions)] == [(0, 1), (1, 1), (2, 1)]
    assert "rank 2 on h0 exited with code 3; all ranks start again now (restart 1 of 3)" in said(actions)
    job.form()
    for rank in range(3):
        job.end(rank, 0)
    assert job.ended.code == 0


def fail_epoch(job: Driven) -> None:
    """One crash, and the end of the others."""
    job.end(0, 3)
    for rank in (1, 2):
        job.vanish(rank, -15, by="term", tail=(f"of {rank}",))


def test_restarts_wait_longer_and_longer_and_end() -> None:
    job = running(Policy.RESTART)
    fail_epoch(job)
    job.form()
    fail_epoch(job)
    assert job.state == "BACKOFF"
    assert of(SpawnRank, job.sleep(0.85), epoch=3) == []
    job.sleep(0.2)
    job.form()
    fail_epoch(job)
    job.sleep(2.0)
    job.form()
    fail_epoch(job)
    assert job.epoch == 4
    assert job.ended.code == 3
    assert job.ended.cause == "rank 0 on h0 exited with code 3; its restarts (3) are used up"
    assert job.ended.tails == {1: ("of 1",), 2: ("of 2",)}


def test_health_gives_the_restarts_back() -> None:
    job = running(Policy.RESTART)
    for epoch in range(2, 8):
        job.sleep(601.0)
        fail_epoch(job)
        assert job.epoch == epoch
        job.form()


def test_an_old_epochs_words_are_dropped_and_counted() -> None:
    job = running(Policy.RESTART)
    fail_epoch(job)
    before = job.machine.dropped
    assert job.hear(RankSpawned(rank=0, epoch=1, pid=1)) == []
    assert job.hear(RankSpawned(rank=0, epoch=3, pid=1)) == []
    assert job.hear(RankSpawned(rank=7, epoch=2, pid=1), 0) == []
    assert job.machine.dropped == before + 3


# ---- a person asks for the end -------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(2, 130), (15, 143), (1, 129), (3, 131)])
@pytest.mark.parametrize("policy", ALL)
def test_a_stop_request_ends_cleanly(policy: Policy, number: int, code: int) -> None:
    job = running(policy)
    actions = job.stop(number)
    assert of(StopRank, actions) == [StopRank(host=0, rank=r, epoch=1, grace_s=10.0) for r in range(3)]
    for rank in range(3):
        job.vanish(rank, 1, by="term")
    assert job.ended.code == code
    assert job.ended.cause.startswith("stopped by SIG")
    assert job.state == "STOPPED"


def test_a_second_one_means_at_once_and_a_third_no_more() -> None:
    job = running()
    job.stop()
    actions = job.stop()
    assert [stop.grace_s for stop in of(StopRank, actions)] == [0.0, 0.0, 0.0]
    assert of(StopRank, job.stop()) == []


def test_a_stop_request_does_not_outrank_an_earlier_cause() -> None:
    job = running()
    job.end(2, -9)
    job.stop()
    for rank in (0, 1):
        job.vanish(rank, 0, by="term")
    assert job.ended.code == 137
    assert job.state == "FAILED"


def test_a_stop_request_outranks_what_follows_from_it() -> None:
    job = running()
    job.stop()
    job.die(1, -11)
    for rank in range(3):
        job.vanish(rank, -11)
    assert job.ended.code == 130


def test_a_stop_request_before_the_first_rank() -> None:
    job = Driven(job_spec(hosts=2))
    job.feed(JobStarted())
    job.ready(0)
    actions = job.stop(15)
    assert (job.ended.code, job.state) == (143, "STOPPED")
    assert of(EndAgent, actions) == [EndAgent(host=0)]


def test_a_stop_request_between_two_epochs() -> None:
    job = running(Policy.RESTART)
    fail_epoch(job)
    job.form()
    fail_epoch(job)
    assert job.state == "BACKOFF"
    job.stop(2)
    assert (job.ended.code, job.state) == (130, "STOPPED")


def test_a_stop_request_while_draining_for_a_restart() -> None:
    job = running(Policy.RESTART)
    job.die(0, 3)
    job.stop(2)
    for rank, status in ((0, 3), (1, -15), (2, -15)):
        job.vanish(rank, status, by="itself" if rank == 0 else "term")
    assert (job.ended.code, job.epoch) == (3, 1)


# ---- what cannot be ended ------------------------------------------------------------------------


def test_what_cannot_be_killed_is_reported_and_nothing_starts_again() -> None:
    job = running(Policy.RESTART)
    job.end(0, 3)
    job.vanish(1, -15, by="term")
    job.hear(RankUnkillable(rank=2, epoch=1, pid=1002))
    assert job.ended.code == 71
    assert job.ended.cause == "rank 0 on h0 exited with code 3; rank 2 on h0 (pid 1002) cannot be killed"


def test_what_can_be_killed_after_all_is_forgotten() -> None:
    job = running(Policy.STOP)
    job.end(0, 3)
    job.hear(RankUnkillable(rank=2, epoch=1, pid=1002))
    job.vanish(2, -9, by="kill")
    job.vanish(1, -15, by="term")
    assert job.ended.code == 3


def test_what_cannot_be_killed_forbids_a_restart_also_when_its_host_is_lost() -> None:
    """Found by random events: the lost host's ranks were written off, the unkillable one with them."""
    job = running(Policy.RESTART, hosts=2, per_host=2)
    job.hear(RankUnkillable(rank=0, epoch=1, pid=1000))
    job.agent_ends(1)
    job.vanish(1, -15, by="term")
    assert (job.ended.code, job.epoch) == (71, 1)


def test_what_was_left_to_its_lease_forbids_a_restart() -> None:
    """The unkillable process ended after all, but by then the lost host's ranks were not waited for."""
    job = running(Policy.RESTART, hosts=2, per_host=2)
    job.hear(RankUnkillable(rank=0, epoch=1, pid=1000))
    job.agent_ends(1)
    job.vanish(0, -9, by="kill")
    job.vanish(1, -15, by="term")
    assert (job.ended.code, job.epoch) == (72, 1)


def test_an_agent_that_does_not_end_its_ranks_is_given_up() -> None:
    job = running(Policy.RESTART)
    job.end(0, 3)
    job.sleep(TIMEOUTS.grace_s + 2 * KILL_BOUND_S + 1.0)
    assert job.ended.code == 3
    assert "host h0 does not end its ranks" in said(job.done)


def test_a_silent_host_is_not_waited_for_when_nothing_follows() -> None:
    job = running(Policy.RAISE, hosts=2, per_host=1)
    job.now += 3.0
    job.beat(0)
    job.wake()
    job.stop()
    job.vanish(0, 0, by="term")
    for _ in range(25):
        job.now += 1.0
        job.beat(0)
        job.wake()
    assert job.ended.code == 130


def test_a_silent_host_is_waited_for_when_a_restart_follows() -> None:
    """(e)"""
    job = running(Policy.RESTART, hosts=2, per_host=1)
    cut_at = job.now
    job.end(0, 3)
    while not of(SpawnRank, job.done, epoch=2):
        job.now += 0.5
        job.beat(0)
        job.wake()
        if of(StartAgent, job.done, host=1)[1:] and job.machine.fleet.machines[1].incarnation is None:
            job.lives[1] = 2
            job.ready(1)
    assert job.now >= cut_at + TIMEOUTS.lease_s + TIMEOUTS.grace_s + KILL_BOUND_S


# ---- the rest ------------------------------------------------------------------------------------


def test_an_action_that_failed_ends_the_job() -> None:
    job = running(Policy.RESTART)
    job.feed(ActionFailed(action="WriteVerdict", error="disk full", host=0))
    for rank in range(3):
        job.vanish(rank, -15, by="term")
    assert (job.ended.code, job.epoch) == (70, 1)
    assert job.ended.cause == "WriteVerdict on h0 failed: disk full"


def test_an_agents_failure_is_heard_too() -> None:
    job = running()
    job.hear(ActionFailed(action="WriteBlock", error="gone", host=0), 0)
    assert job.state == "DRAINING"
    other = running()
    other.feed(ActionFailed(action="Say", error="closed"))
    assert other.state == "DRAINING"


def test_a_verdict_of_nobody_is_no_news() -> None:
    assert running().hear(VerdictWritten(host=0, verdict=999)) == []


def test_the_past_is_kept_for_people() -> None:
    job = running()
    job.end(2, 3)
    texts = [text for _, text in job.machine.happenings]
    assert "rank 2 on h0 exited with code 3" in texts
    assert [action.level for action in of(Say, job.done) if "exited" in action.text] == ["note"]
