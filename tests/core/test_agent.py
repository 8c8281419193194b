"""The agent machine: what one host's agent decides by itself."""

from __future__ import annotations

from jlaunch.core.actions import EndAgent, ExitAgent, RenewLease, SendBeat, SignalGroup, StartProcess
from jlaunch.core.events import ActionFailed, AgentReady, LeaseLapsed, RankSpawnFailed
from jlaunch.core.facts import AgentStarted, DeedFailed, SupervisorGone, SupervisorHeard
from jlaunch.core.process import KILL_BOUND_S
from tests.core.agent_driving import TIMEOUTS, Agent, of, sent


def test_it_says_that_it_is_there_and_beats() -> None:
    agent = Agent()
    deeds = agent.feed(AgentStarted())
    assert sent(deeds) == [AgentReady(host=1, incarnation="i1", pid=77)]
    assert of(SendBeat, deeds) == [SendBeat(beat=1)]
    assert [beat.beat for beat in of(SendBeat, agent.sleep(3.0))] == [2, 3, 4]


def test_other_words_from_above_renew_nothing() -> None:
    agent = Agent().start()
    assert agent.feed(SupervisorHeard()) == []
    assert agent.machine.lease.lapses_at == 100.0 + TIMEOUTS.lease_s


def test_a_failed_deed_is_reported() -> None:
    agent = Agent().start()
    (event,) = sent(agent.feed(DeedFailed(deed="WriteBlock", error="disk full", rank=2)))
    assert event == ActionFailed(action="WriteBlock", error="disk full", rank=2, host=1)


def test_it_leaves_when_it_is_sent_home() -> None:
    agent = Agent().start()
    assert agent.feed(EndAgent(host=1)) == [ExitAgent(code=0)]
    assert agent.machine.is_over
    assert agent.machine.next_deadline() is None
    assert agent.feed(EndAgent(host=1)) == []
    assert agent.machine.dropped == 1


def test_sent_home_with_ranks_it_ends_them_first() -> None:
    agent = Agent().start().run(2, 3)
    assert {deed.signal for deed in of(SignalGroup, agent.feed(EndAgent(host=1)))} == {15}
    agent.end(2, -15)
    assert of(ExitAgent, agent.end(3, -15)) == [ExitAgent(code=0)]


def test_the_end_of_the_supervisor_ends_everybody_at_once() -> None:
    agent = Agent().start().run(2, 3)
    assert {deed.rank for deed in of(SignalGroup, agent.feed(SupervisorGone()), signal=15)} == {2, 3}
    agent.end(2, -15)
    assert of(SignalGroup, agent.sleep(TIMEOUTS.grace_s), signal=9) == [
        SignalGroup(rank=3, epoch=1, signal=9)
    ]
    assert of(ExitAgent, agent.end(3, -9)) == [ExitAgent(code=0)]


def test_what_cannot_be_killed_does_not_keep_it() -> None:
    agent = Agent().start().run(2)
    agent.feed(SupervisorGone())
    assert of(ExitAgent, agent.sleep(TIMEOUTS.grace_s + KILL_BOUND_S + 0.1)) == [ExitAgent(code=0)]


def test_the_lease_lapses_in_silence() -> None:
    agent = Agent().start().run(2)
    deeds = agent.sleep(TIMEOUTS.lease_s)
    assert LeaseLapsed(host=1) in sent(deeds)
    assert of(SignalGroup, deeds) == [SignalGroup(rank=2, epoch=1, signal=15)]
    assert of(ExitAgent, agent.end(2, -15)) == [ExitAgent(code=72)]


def test_the_lease_is_renewed_by_echoes() -> None:
    agent = Agent().start().run(2)
    for beat in range(1, 200):
        agent.feed(RenewLease(host=1, beat=beat))
        agent.sleep(1.0)
    assert not agent.machine.is_over
    assert agent.machine.living == (2,)


def test_a_renewal_after_the_end_has_begun_changes_nothing() -> None:
    agent = Agent().start().run(2)
    agent.feed(SupervisorGone())
    agent.feed(RenewLease(host=1, beat=1))
    assert of(SignalGroup, agent.sleep(TIMEOUTS.grace_s), signal=9) != []


def test_a_host_that_slept_past_lease_and_grace_kills_at_once() -> None:
    agent = Agent().start().run(2)
    agent.now += TIMEOUTS.lease_s + TIMEOUTS.grace_s + 1.0
    assert [deed.signal for deed in of(SignalGroup, agent.wake())] == [15, 9]


def test_who_is_about_to_leave_starts_nobody() -> None:
    agent = Agent().start().run(2)
    agent.feed(SupervisorGone())
    deeds = agent.spawn(3)
    assert of(StartProcess, deeds) == []
    assert sent(deeds) == [RankSpawnFailed(rank=3, epoch=1, error="its agent is about to end")]
