"""The life of a job: agents, epochs, the end."""

from __future__ import annotations

import msgspec
import pytest

from jlaunch.core.actions import (
    EndAgent,
    EndJob,
    OpenGroup,
    RenewLease,
    Say,
    SpawnRank,
    StartAgent,
    StopRank,
)
from jlaunch.core.events import (
    ActionFailed,
    AgentExited,
    AgentHeard,
    AgentReady,
    HeartbeatArrived,
    HostSwept,
    JobStarted,
    LeaseLapsed,
    RankSpawned,
    RankUnkillable,
    VerdictWritten,
)
from jlaunch.core.fleet import AGENT_START_TIMEOUT_S
from jlaunch.core.job import SLEPT_S
from jlaunch.core.job_table import TERMINAL, TRANSITIONS, JobState
from jlaunch.core.process import KILL_BOUND_S
from jlaunch.core.spec import Policy
from tests.core.driving import TIMEOUTS, Driven, job_spec, of, raises, said, stopped, wait_for

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


# ---- hosts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("is_local", "code"), [(True, 72), (False, 68)])
def test_an_agents_end_is_the_loss_of_its_ranks(is_local: bool, code: int) -> None:
    job = Driven(job_spec(hosts=2, per_host=1, is_local=is_local)).run()
    assert raises(job.agent_ends(1)) == {0: {1}}
    job.end(0, 0)
    assert job.ended.code == code
    assert "its agent was killed by SIGKILL (signal 9)" in job.ended.cause


def test_an_agents_end_without_ranks_is_no_loss() -> None:
    job = running(hosts=2, per_host=1)
    job.end(1, 0)
    job.agent_ends(1, None)
    job.end(0, 0)
    assert job.ended.code == 0


def test_an_agents_end_that_was_expected_or_of_another_life() -> None:
    job = running(hosts=2, per_host=1)
    assert job.feed(AgentExited(host=1, status=0, incarnation="1.0")) == []
    assert job.feed(AgentExited(host=9, status=0)) == []
    job.agent_ends(1)
    assert job.feed(AgentExited(host=1, status=0)) == []


def test_a_restart_after_an_agents_end_waits_for_the_guardian() -> None:
    job = running(Policy.RESTART, hosts=2, per_host=1)
    job.agent_ends(1)
    job.vanish(0, -15, by="term")
    assert of(StartAgent, job.sleep(TIMEOUTS.grace_s + KILL_BOUND_S - 0.1)) == []
    assert of(StartAgent, job.sleep(0.2)) == [StartAgent(host=1)]
    job.lives[1] = 2
    assert of(SpawnRank, job.ready(1), epoch=2) != []


def test_a_guardian_that_reports_shortens_the_wait() -> None:
    job = running(Policy.RESTART, hosts=2, per_host=1)
    assert job.feed(HostSwept(host=1)) == []
    job.agent_ends(1)
    job.vanish(0, -15, by="term")
    assert of(StartAgent, job.feed(HostSwept(host=1))) == [StartAgent(host=1)]


def test_a_lost_life_is_not_heard_again() -> None:
    job = running(Policy.RESTART, hosts=2, per_host=1)
    job.agent_ends(1)
    job.vanish(0, -15, by="term")
    job.feed(HostSwept(host=1))
    before = job.machine.dropped
    old = AgentReady(host=1, incarnation="1.1", pid=11)
    assert job.hear(old, 1) == []
    assert job.hear(HeartbeatArrived(host=1), 1) == []
    stranger = AgentHeard(host=1, incarnation="x", event=HeartbeatArrived(host=1))
    assert job.feed(stranger) == []
    nowhere = AgentHeard(host=7, incarnation="x", event=HeartbeatArrived(host=7))
    assert job.feed(nowhere) == []
    assert job.machine.dropped == before + 4


def test_a_lapsed_lease_is_the_loss_of_control() -> None:
    job = Driven(job_spec(hosts=2, per_host=1, is_local=False)).run()
    assert raises(job.hear(LeaseLapsed(host=1))) == {0: {1}}
    job.end(0, 0)
    assert job.ended.code == 72
    assert "heard nothing from here for 60 s" in job.ended.cause


@pytest.mark.parametrize("policy", ALL)
def test_an_agent_that_does_not_come_ends_the_start(policy: Policy) -> None:
    spec = job_spec(policy, hosts=2, is_local=False, max_restarts=0)
    job = Driven(spec)
    job.feed(JobStarted())
    job.ready(0)
    job.sleep(AGENT_START_TIMEOUT_S + 1)
    assert job.ended.code == 68
    assert "host h1 lost: its agent did not come within 60 s" in job.ended.cause


def test_an_agent_that_cannot_be_started_spends_the_budget() -> None:
    job = Driven(job_spec(Policy.RESTART, max_restarts=1))
    job.feed(JobStarted())
    failed = ActionFailed(action="StartAgent", error="no route", host=0)
    assert of(StartAgent, job.feed(failed)) == [StartAgent(host=0)]
    job.feed(failed)
    assert (job.ended.code, job.epoch) == (72, 2)
    assert "lost: no route" in job.ended.cause


def test_silence_makes_a_host_suspect_and_a_word_ends_it() -> None:
    job = running(hosts=2, per_host=1)
    job.sleep(2.6, beating=False)
    assert "host h1 has not been heard for 2.5 s" in said(job.done)
    assert "host h1 is ready" in said(job.beat(1))
    job.beat(0)
    job.sleep(30.0)
    assert job.state == "RUNNING"


def silent(job: Driven, span_s: float, *, waits: dict | None = None) -> list:  # type: ignore[type-arg]
    """h1 says nothing for ``span_s``; h0 does, and its rank waits since ``waited_s`` or not at all."""
    actions = []
    end = job.now + span_s
    while job.now < end:
        job.now += 0.5
        grown = {
            rank: msgspec.structs.replace(wait, waited_s=wait.waited_s + job.now + span_s - end)
            for rank, wait in (waits or {}).items()
        }
        actions += job.beat(0, waits=grown)
        actions += job.wake()
    return actions


def two_planes(policy: Policy = Policy.RAISE) -> Driven:
    job = Driven(job_spec(policy, hosts=2, per_host=1, is_local=False)).run()
    job.beat(0, 1, waits={1: wait_for(0, waited_s=0.1)})
    return job


def test_two_silent_planes_lose_a_host_in_time() -> None:
    job = two_planes()
    actions = silent(job, 5.5, waits={0: wait_for(1, waited_s=0.0)})
    assert "host h1 lost: not heard for 5.0 s (limit 5 s), and rank 0 has waited" in said(actions)
    job.end(0, 0)
    assert job.ended.code == 68


def test_one_silent_plane_loses_nobody_before_the_lease() -> None:
    job = two_planes()
    assert "lost" not in said(silent(job, TIMEOUTS.lease_s - 2.0))
    assert "its lease of 60 s has lapsed" in said(silent(job, 3.0))


def test_a_wait_that_began_later_says_nothing_about_the_data_plane() -> None:
    """The rank computes: late is not lost."""
    job = two_planes()
    silent(job, 10.0)
    assert "lost" not in said(silent(job, 20.0, waits={0: wait_for(1, waited_s=0.0)}))


def test_a_rank_last_seen_outside_is_late_at_most() -> None:
    job = Driven(job_spec(hosts=2, per_host=1, is_local=False)).run()
    job.beat(0, 1)
    assert "lost" not in said(silent(job, 20.0, waits={0: wait_for(1, waited_s=0.0)}))


def test_leases_are_renewed_with_the_last_beat_heard() -> None:
    job = running(hosts=2, per_host=1)
    job.hear(HeartbeatArrived(host=1, beat=7), 1)
    job.hear(HeartbeatArrived(host=1, beat=5), 1)
    job.now += 1.0
    actions = job.wake()
    assert [renewal.beat for renewal in of(RenewLease, actions, host=1)] == [7]


def test_our_own_sleep_is_not_the_others_silence() -> None:
    job = running(hosts=2, per_host=1)
    job.now += 50.0
    assert said(job.wake()) == ""
    job.now += SLEPT_S / 2
    job.beat()
    job.sleep(5.0)
    assert "not been heard" not in said(job.done)


def test_our_own_sleep_while_draining_gives_nobody_up() -> None:
    job = running(hosts=2, per_host=1)
    job.stop()
    job.now += 100.0
    job.wake()
    job.beat()
    assert job.state == "DRAINING"


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
