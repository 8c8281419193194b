"""The fast path: what the ranks of a host are told of a death that its agent saw."""

from __future__ import annotations

import pytest

from jlaunch.core.actions import (
    StopRank,
    WriteBlock,
    WriteVerdict,
)
from jlaunch.core.contract import Reason, VerdictKind
from jlaunch.core.events import (
    Loss,
    RankDied,
)
from jlaunch.core.facts import (
    ClaimLeft,
)
from jlaunch.core.process import OWN_VERDICTS, STATUS_PATIENCE_S
from jlaunch.core.spec import Policy
from tests.core.agent_driving import Agent, of, sent, written
from tests.core.driving import wait_for

LOSS = (Loss(rank=0, reason=Reason.KILLED, completed_seq=3),)
CLEAN = (Loss(rank=0, reason=Reason.EXITED, completed_seq=3, clean=True),)


def verdict(kind: VerdictKind, *ranks: int, number: int = 5, epoch: int = 1, **more: object) -> WriteVerdict:
    return WriteVerdict(host=1, verdict=number, epoch=epoch, kind=kind, ranks=ranks, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("policy", "kind"),
    [
        (Policy.RAISE, VerdictKind.RAISE),
        (Policy.WAIT, VerdictKind.RAISE),
        (Policy.STOP, VerdictKind.STOP),
        (Policy.RESTART, VerdictKind.STOP),
    ],
)
def test_the_others_are_told_before_the_supervisor(policy: Policy, kind: VerdictKind) -> None:
    agent = Agent(policy).start().form(2, 3, 4)
    deeds = agent.die(3, -9, wait=wait_for(2))
    assert written(deeds) == {2: (kind, {3}), 4: (kind, {3})}
    assert all(write.verdict > OWN_VERDICTS for write in of(WriteBlock, deeds))
    (died,) = sent(deeds)
    assert died == RankDied(rank=3, epoch=1, status=-9, completed_seq=4, told=(2, 4), wait=wait_for(2))
    assert isinstance(deeds[-1].event, RankDied)  # type: ignore[attr-defined]


@pytest.mark.parametrize("policy", [Policy.RAISE, Policy.RESTART])
def test_a_clean_end_is_told_as_one_whatever_the_policy(policy: Policy) -> None:
    agent = Agent(policy).start().form(2, 3)
    deeds = agent.die(3, 0)
    (write,) = of(WriteBlock, deeds)
    assert (write.kind, write.losses) == (
        VerdictKind.RAISE,
        (Loss(rank=3, reason=Reason.EXITED, completed_seq=4, clean=True),),
    )
    assert sent(deeds)[0].clean


def test_a_death_is_told_once() -> None:
    agent = Agent().start().form(2, 3)
    agent.die(3, 1)
    assert agent.exit(3, 1) == []
    (exited,) = sent(agent.vanish(3))
    assert (exited.status, exited.claimed, exited.completed_seq) == (1, True, 4)


def test_a_death_without_a_claim_is_told_by_its_process() -> None:
    agent = Agent().start().run(2)
    assert sent(agent.exit(2, 3)) == [RankDied(rank=2, epoch=1, status=3, completed_seq=0)]


def test_an_unknown_status_is_waited_for() -> None:
    agent = Agent().start().form(2, 3)
    assert agent.die(3, None) == []
    deeds = agent.exit(3, 0)
    assert sent(deeds)[0].clean
    agent.vanish(3)
    assert agent.sleep(STATUS_PATIENCE_S) == []


def test_an_unknown_status_is_not_waited_for_long() -> None:
    agent = Agent().start().form(2, 3)
    agent.die(3, None)
    died = next(event for event in sent(agent.sleep(STATUS_PATIENCE_S)) if isinstance(event, RankDied))
    assert (died.status, died.clean, died.told) == (None, False, (2,))
    assert agent.exit(3, -9) == []


@pytest.mark.parametrize("how", ["left", "clean"])
def test_good_order_counts_if_the_status_stays_unknown(how: str) -> None:
    agent = Agent().start().form(2, 3)
    if how == "left":
        agent.feed(ClaimLeft(rank=3, epoch=1, completed_seq=9))
    agent.die(3, None, clean=how == "clean")
    died = next(event for event in sent(agent.sleep(STATUS_PATIENCE_S)) if isinstance(event, RankDied))
    assert (died.status, died.clean) == (None, True)
    assert died.completed_seq == (9 if how == "left" else 4)


def test_a_status_outranks_good_order() -> None:
    """Code 3 after a tidy goodbye is no clean end."""
    agent = Agent().start().form(2, 3)
    agent.feed(ClaimLeft(rank=3, epoch=1, completed_seq=9))
    (died,) = sent(agent.die(3, 3, clean=True))
    assert (died.status, died.clean) == (3, False)


def test_nothing_is_told_before_the_group_is_open() -> None:
    agent = Agent().start().run(2, 3).claim(2, 3)
    deeds = agent.die(3, -9)
    assert written(deeds) == {}
    assert sent(deeds)[0].told == ()


def test_one_that_was_told_before_it_died_is_no_news_to_the_others() -> None:
    agent = Agent().start().form(2, 3, 4)
    agent.die(3, -9)
    deeds = agent.die(2, 1)
    assert written(deeds) == {}
    assert sent(deeds)[0].told == ()


def test_a_clean_end_is_no_news_after_a_loss() -> None:
    agent = Agent().start().form(2, 3)
    agent.feed(verdict(VerdictKind.RAISE, 3, losses=LOSS))
    assert written(agent.die(2, 0)) == {}


def test_a_death_on_order_is_no_loss() -> None:
    agent = Agent().start().form(2, 3)
    agent.feed(StopRank(host=1, rank=3, epoch=1, grace_s=10.0))
    assert agent.die(3, -15) == []
    assert agent.exit(3, -15) == []
