"""The announced pause: a person holds the whole job, and it costs nobody anything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jlaunch.core.actions import (
    EndJob,
    PauseHost,
    ResumeHost,
    Say,
    SendBeat,
    SignalGroup,
    StopRank,
    Suspend,
    WriteVerdict,
)
from jlaunch.core.events import (
    HostPaused,
    PauseRequested,
    RankPaused,
    RankResumed,
    ResumeRequested,
    StopRequested,
)
from jlaunch.core.facts import ProcessStarted, ProcessStopped, SupervisorGone
from jlaunch.core.pause import HOLD_BOUND_S, PausableClock
from jlaunch.core.spec import Policy
from tests.core.agent_driving import Agent, sent
from tests.core.agent_driving import of as deeds_of
from tests.core.driving import TIMEOUTS, Driven, job_spec, of, said

STOP, CONTINUE, TERMINATE = 19, 18, 15
NIGHT_S = 8 * 3600.0


def test_a_clock_that_is_held_shows_the_time_for_which_it_ran() -> None:
    clock = PausableClock()
    clock.hold(10.0)
    assert (clock.read(50.0), clock.comes_at(11.0)) == (10.0, None)
    assert clock.go_on(70.0) == 60.0
    assert (clock.read(71.0), clock.comes_at(11.0)) == (11.0, 71.0)
    assert clock.go_on(80.0) == 0.0


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6))
def test_when_it_is_woken_its_moment_has_come(held_at: float, span_s: float, due_s: float) -> None:
    clock = PausableClock()
    clock.hold(held_at)
    clock.go_on(held_at + span_s)
    moment = clock.comes_at(held_at + due_s)
    assert moment is not None
    assert clock.read(moment) >= held_at + due_s


# ---- the supervisor ------------------------------------------------------------------------------


def test_every_host_is_held_and_then_we_are_suspended() -> None:
    job = Driven(job_spec(hosts=2)).run()
    actions = job.feed(PauseRequested())
    assert [order.host for order in of(PauseHost, actions)] == [0, 1]
    assert of(Suspend, actions) == []
    assert of(Suspend, job.hear(HostPaused(host=0))) == []
    assert of(Suspend, job.hear(HostPaused(host=1))) == [Suspend()]
    assert job.feed(PauseRequested()) == []


def test_an_agent_that_does_not_answer_keeps_no_terminal() -> None:
    job = Driven(job_spec(hosts=2)).run()
    job.feed(PauseRequested())
    job.hear(HostPaused(host=0))
    assert job.machine.next_deadline() == job.now + HOLD_BOUND_S
    job.now += HOLD_BOUND_S
    assert of(Suspend, job.wake()) == [Suspend()]
    assert job.machine.next_deadline() is None


@pytest.mark.parametrize("policy", [Policy.RAISE, Policy.STOP, Policy.RESTART])
def test_a_night_of_pause_is_no_time_at_all(policy: Policy) -> None:
    """No limit is reached, no host is suspect, nobody is lost, and afterwards all limits hold as before."""
    job = Driven(job_spec(policy)).run()
    job.feed(PauseRequested())
    for rank in range(3):
        job.hear(RankPaused(rank=rank, epoch=1))
    job.hear(HostPaused(host=0))
    began = len(job.done)
    job.now += NIGHT_S
    job.wake()
    (order,) = of(ResumeHost, job.feed(ResumeRequested()))
    assert order.host == 0
    for rank in range(3):
        job.hear(RankResumed(rank=rank, epoch=1))
    job.sleep(2.0)
    job.beat(0)
    assert not of(WriteVerdict, job.done[began:])
    assert not of(StopRank, job.done[began:])
    assert [action.text for action in of(Say, job.done[began:])] == [
        f"the job goes on after a pause of {NIGHT_S:.1f} s"
    ]
    assert all(rank.loss is None for rank in job.machine.epoch.ranks)
    job.hear(RankPaused(rank=1, epoch=1))
    assert "rank 1 on h0 is paused" in said(job.done[began:])


def test_who_was_paused_by_hand_is_named_and_waited_for_no_longer_than_before() -> None:
    job = Driven().run()
    job.hear(RankPaused(rank=1, epoch=1))
    before = job.machine.epoch.ranks[1].paused_at
    job.feed(PauseRequested())
    job.now += NIGHT_S
    job.feed(ResumeRequested())
    snapshot = job.machine.snapshot(job.now)
    assert job.machine.epoch.ranks[1].paused_at == before
    assert snapshot.ranks[1].state == "paused"
    assert snapshot.ranks[1].age_s < TIMEOUTS.max_pause_s


def test_the_end_of_the_job_ends_the_pause_first() -> None:
    job = Driven().run()
    job.feed(PauseRequested())
    job.now += NIGHT_S
    actions = job.feed(StopRequested(signal=15))
    kinds = [type(action) for action in actions if not isinstance(action, Say)]
    assert kinds[0] is ResumeHost
    assert kinds[1:] == [StopRank] * 3
    for rank in range(3):
        job.vanish(rank, -15, by="term")
    assert of(EndJob, job.done)[0].code == 143


def test_a_job_that_is_ending_is_not_paused() -> None:
    job = Driven().run()
    job.feed(StopRequested(signal=15))
    assert of(PauseHost, job.feed(PauseRequested())) == []
    assert "it is not paused" in said(job.done)


def test_the_end_of_an_agent_is_no_reason_to_wait_for_it() -> None:
    job = Driven(job_spec(hosts=2)).run()
    job.feed(PauseRequested())
    job.hear(HostPaused(host=0))
    job.agent_ends(1)
    assert job.machine.exit_code is None
    assert not job.machine.pause.is_on or of(Suspend, job.done)


# ---- the agent -----------------------------------------------------------------------------------


def signals(deeds: list[SignalGroup]) -> dict[int, int]:
    return {deed.rank: deed.signal for deed in deeds}


def test_an_agent_stops_its_ranks_and_its_lease() -> None:
    agent = Agent().start().form(2, 3)
    agent.feed(ProcessStopped(rank=3, epoch=1, signal=STOP))  # by hand, before
    deeds = agent.feed(PauseHost(host=1))
    assert signals(deeds_of(SignalGroup, deeds)) == {2: STOP}
    assert HostPaused(host=1) in sent(deeds)
    deeds = agent.sleep(10 * TIMEOUTS.lease_s)
    assert {type(deed) for deed in deeds} == {SendBeat}
    assert all(deed.is_quiet for deed in deeds_of(SendBeat, deeds))
    deeds = agent.feed(ResumeHost(host=1))
    assert isinstance(deeds[0], SendBeat)
    assert not deeds[0].is_quiet
    assert signals(deeds_of(SignalGroup, deeds)) == {2: CONTINUE}
    assert deeds_of(SignalGroup, agent.sleep(TIMEOUTS.lease_s / 2)) == []


def test_a_process_that_is_being_started_is_held_when_it_exists() -> None:
    agent = Agent().start()
    agent.spawn(2)
    assert deeds_of(SignalGroup, agent.feed(PauseHost(host=1))) == []
    deeds = agent.feed(ProcessStarted(rank=2, epoch=1, pid=1002))
    assert signals(deeds_of(SignalGroup, deeds)) == {2: STOP}
    assert signals(deeds_of(SignalGroup, agent.feed(ResumeHost(host=1)))) == {2: CONTINUE}


def test_a_supervisor_that_dies_during_the_pause_leaves_nobody() -> None:
    agent = Agent().start().form(2, 3)
    agent.feed(PauseHost(host=1))
    for rank in (2, 3):
        agent.feed(ProcessStopped(rank=rank, epoch=1, signal=STOP))
    agent.now += NIGHT_S
    deeds = agent.feed(SupervisorGone())
    assert [(deed.rank, deed.signal) for deed in deeds_of(SignalGroup, deeds)] == [
        (2, TERMINATE),
        (2, CONTINUE),
        (3, TERMINATE),
        (3, CONTINUE),
    ]
    assert signals(deeds_of(SignalGroup, agent.sleep(TIMEOUTS.grace_s))) == {2: 9, 3: 9}


def test_a_second_order_and_a_resume_out_of_turn_are_harmless() -> None:
    agent = Agent().start().form(2)
    assert agent.feed(ResumeHost(host=1)) == []
    agent.feed(PauseHost(host=1))
    assert deeds_of(SignalGroup, agent.feed(PauseHost(host=1))) == []
