"""Hosts: agents' lives, silence, leases, and the two planes."""

from __future__ import annotations

import msgspec
import pytest

from jlaunch.core.actions import (
    RenewLease,
    SpawnRank,
    StartAgent,
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
    VerdictWritten,
    Wait,
)
from jlaunch.core.fleet import AGENT_START_TIMEOUT_S
from jlaunch.core.job import SLEPT_S
from jlaunch.core.process import KILL_BOUND_S
from jlaunch.core.spec import Policy
from tests.core.driving import TIMEOUTS, Driven, job_spec, of, raises, said, wait_for

ALL = (Policy.RAISE, Policy.WAIT, Policy.STOP, Policy.RESTART)


def running(policy: Policy = Policy.RAISE, **shape: int) -> Driven:
    """A job whose group is open."""
    return Driven(job_spec(policy, **shape)).run()  # type: ignore[arg-type]


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


def test_old_news_of_the_data_plane_says_nothing() -> None:
    """Whoever waited may have been served since."""
    job = two_planes()
    job.beat(0, waits={0: wait_for(1)})
    for _ in range(20):
        job.now += 0.5
        job.hear(VerdictWritten(host=0, verdict=999), 0)
        job.wake()
    assert "lost" not in said(job.done)


@pytest.mark.parametrize("place", [{}, {1: wait_for(0, seq=4)}, {1: wait_for(0, group=3)}])
def test_a_rank_last_seen_elsewhere_is_late_at_most(place: dict[int, Wait]) -> None:
    """Outside any collective, inside an earlier one, or inside one of another group."""
    job = Driven(job_spec(hosts=2, per_host=1, is_local=False)).run()
    job.beat(0, 1, waits=place)
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
