"""How a process group ends."""

from __future__ import annotations

from jlaunch.core.actions import SignalGroup, StopRank, WriteBlock
from jlaunch.core.contract import Reason, VerdictKind
from jlaunch.core.events import Loss, RankExited, RankUnkillable
from jlaunch.core.facts import LeftWait, ProcessStopped
from jlaunch.core.process import KILL_BOUND_S, SWEEP_DELAY_S, TERM_DELAY_S, Block
from tests.core.agent_driving import Agent, of, sent, written
from tests.core.driving import TIMEOUTS

STOP = StopRank(host=1, rank=2, epoch=1, grace_s=10.0)
AT_ONCE = StopRank(host=1, rank=2, epoch=1, grace_s=0.0)


def signals(deeds: list) -> list[int]:  # type: ignore[type-arg]
    return [deed.signal for deed in of(SignalGroup, deeds)]


def test_a_process_without_a_claim_is_told_by_signal() -> None:
    agent = Agent().start().run(2)
    deeds = agent.feed(STOP)
    assert written(deeds) == {2: (VerdictKind.STOP, set())}
    assert signals(deeds) == [15]


def test_a_rank_in_its_wait_has_200_ms_to_leave_it() -> None:
    agent = Agent().start().form(2)
    deeds = agent.feed(STOP)
    assert (written(deeds), signals(deeds)) == ({2: (VerdictKind.STOP, set())}, [])
    assert signals(agent.sleep(TERM_DELAY_S - 0.01)) == []
    assert signals(agent.sleep(0.02)) == [15]


def test_sigterm_follows_when_it_has_left_its_wait() -> None:
    agent = Agent().start().form(2)
    agent.feed(STOP)
    assert signals(agent.feed(LeftWait(rank=2, epoch=1))) == [15]
    assert signals(agent.feed(LeftWait(rank=2, epoch=1))) == []
    assert signals(agent.sleep(1.0)) == []


def test_it_may_have_left_its_wait_before() -> None:
    agent = Agent().start().form(2)
    assert agent.feed(LeftWait(rank=2, epoch=1)) == []
    assert signals(agent.feed(STOP)) == [15]


def test_sigkill_when_the_grace_is_over_and_not_twice() -> None:
    agent = Agent().start().form(2)
    agent.feed(STOP)
    assert signals(agent.sleep(9.9)) == [15]
    assert signals(agent.sleep(0.2)) == [9]
    agent.feed(AT_ONCE)
    (exited,) = sent(agent.end(2, -9))
    assert (exited.status, exited.by) == (-9, "kill")


def test_no_grace_is_sigkill_at_once() -> None:
    agent = Agent().start().form(2)
    assert signals(agent.feed(AT_ONCE)) == [9]


def test_a_second_order_can_only_be_harder() -> None:
    agent = Agent().start().form(2)
    agent.feed(STOP)
    agent.sleep(5.0)
    agent.feed(STOP)
    assert signals(agent.sleep(5.1)) == [9]
    other = Agent().start().form(2)
    other.feed(STOP)
    assert signals(other.feed(AT_ONCE)) == [9]


def test_a_stopped_process_gets_sigterm_and_sigcont() -> None:
    agent = Agent().start().form(2)
    agent.feed(ProcessStopped(rank=2, epoch=1))
    assert signals(agent.feed(STOP)) == [15, 18]


def test_stopping_it_while_it_ends_is_undone() -> None:
    agent = Agent().start().form(2)
    agent.feed(STOP)
    assert signals(agent.feed(ProcessStopped(rank=2, epoch=1))) == [15, 18, 18]
    assert signals(agent.feed(ProcessStopped(rank=2, epoch=1))) == [18]


def test_what_cannot_be_killed_is_reported_once_and_may_end_after_all() -> None:
    agent = Agent().start().run(2)
    agent.feed(AT_ONCE)
    assert RankUnkillable(rank=2, epoch=1, pid=1002) in sent(agent.sleep(KILL_BOUND_S))
    assert RankUnkillable(rank=2, epoch=1, pid=1002) not in sent(agent.sleep(20.0))
    assert isinstance(sent(agent.end(2, -9))[-1], RankExited)


def test_a_rank_that_ended_by_itself_leaves_nobody() -> None:
    agent = Agent().start().run(2)
    assert signals(agent.exit(2, 0)) == []
    assert signals(agent.sleep(SWEEP_DELAY_S)) == [15]
    assert signals(agent.sleep(TIMEOUTS.grace_s)) == [9]
    (exited,) = sent(agent.vanish(2, tail=("bye",)))
    assert (exited.status, exited.by, exited.tail) == (0, "itself", ("bye",))


def test_an_empty_group_is_not_signalled() -> None:
    agent = Agent().start().run(2)
    agent.end(2, 0)
    assert signals(agent.sleep(60.0)) == []


def test_a_stop_while_the_rest_is_swept_hurries_it() -> None:
    agent = Agent().start().run(2)
    agent.exit(2, 3)
    assert signals(agent.feed(AT_ONCE)) == [9]
    (exited,) = sent(agent.vanish(2))
    assert (exited.status, exited.by) == (3, "term")


def test_a_process_that_the_stop_ended_says_so() -> None:
    agent = Agent().start().run(2)
    agent.feed(STOP)
    (exited,) = sent(agent.end(2, 1))
    assert (exited.status, exited.by) == (1, "term")


def test_a_block_only_grows_more_severe() -> None:
    block = Block()
    clean = Loss(rank=0, reason=Reason.EXITED, clean=True)
    block.merge(VerdictKind.RAISE, (clean,), 0)
    assert (block.has_unclean, block.is_asking) == (False, False)
    block.question = 3
    assert block.is_asking
    block.merge(VerdictKind.KEEP_WAITING, (), 3)
    assert (block.kind, block.is_asking) == (VerdictKind.RAISE, False)
    block.merge(VerdictKind.STOP, (), 0)
    block.merge(VerdictKind.RAISE, (Loss(rank=1, reason=Reason.KILLED),), 0)
    assert (block.kind, block.has_unclean, set(block.losses)) == (VerdictKind.STOP, True, {0, 1})


def test_the_deed_says_all_that_the_block_holds() -> None:
    agent = Agent().start().form(2, 3, 4)
    agent.die(3, 0)
    agent.die(4, -9)
    deeds = agent.feed(STOP)
    (write,) = of(WriteBlock, deeds)
    assert {loss.rank: loss.clean for loss in write.losses} == {3: True, 4: False}
