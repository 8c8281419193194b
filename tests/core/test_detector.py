"""Late is not lost: questions, answers, looks, accusations."""

from __future__ import annotations

import msgspec
import pytest

from jlaunch.core.actions import RecordVerdict, SampleRanks, WriteVerdict
from jlaunch.core.contract import Collective, VerdictKind
from jlaunch.core.detector import FRESH_S, LOOK_TIMEOUT_S
from jlaunch.core.events import (
    DeadlineAsked,
    QuestionAnswered,
    RankPaused,
    RankResumed,
    Wait,
)
from jlaunch.core.spec import FOREVER, Policy
from tests.core.driving import TIMEOUTS, Driven, answers, is_quiet, job_spec, of, raises, said, wait_for


def job(policy: Policy = Policy.RAISE, **timeouts: float) -> Driven:
    """Three ranks on one host, the group is open."""
    spans = msgspec.structs.replace(TIMEOUTS, **timeouts)
    return Driven(job_spec(policy, timeouts=spans)).run()


def looked_at(actions: list) -> set[int]:  # type: ignore[type-arg]
    return {rank for look in of(SampleRanks, actions) for rank in look.ranks}


# ---- questions -----------------------------------------------------------------------------------


def test_a_question_is_answered_when_the_look_comes_back() -> None:
    driven = job()
    actions = driven.ask(0, 2)
    assert looked_at(actions) == {2}
    assert answers(actions) == {}
    actions = driven.look(2)
    assert answers(actions) == {0: "rank 2 is alive, is outside any collective; no movement seen for 0.0 s"}
    (write,) = of(WriteVerdict, actions)
    assert (write.kind, write.ranks, write.question) == (VerdictKind.KEEP_WAITING, (0,), 1)
    (record,) = of(RecordVerdict, actions)
    assert (record.verdict, record.question) == (write.verdict, 1)


def test_one_look_answers_all_who_ask_about_the_same_rank() -> None:
    driven = job()
    driven.ask(0, 2)
    assert looked_at(driven.ask(1, 2)) == set()
    assert set(answers(driven.look(2))) == {0, 1}


def test_a_young_look_answers_at_once() -> None:
    driven = job()
    driven.ask(0, 2)
    driven.look(2)
    driven.now += FRESH_S / 2
    assert set(answers(driven.ask(1, 2))) == {1}
    driven.now += FRESH_S
    assert looked_at(driven.ask(0, 2, question=2)) == {2}


def test_a_look_that_does_not_come_back_is_not_waited_for() -> None:
    driven = job()
    driven.ask(0, 2)
    assert set(answers(driven.sleep(LOOK_TIMEOUT_S))) == {0}


def test_a_question_is_not_put_off_by_later_looks() -> None:
    """Found by seed 1959: with looks coming and going, some look was always under way."""
    driven = job()
    driven.ask(0, 1, 2)
    assert answers(driven.look(1)) == {}
    driven.now += 2 * FRESH_S
    driven.ask(2, 1)
    assert set(answers(driven.look(2))) == {0}


def test_a_question_that_was_seen_is_nothing_new() -> None:
    driven = job()
    driven.ask(0, 2)
    assert is_quiet(driven.ask(0, 2))
    driven.look(2)
    assert is_quiet(driven.ask(0, 2))
    assert answers(driven.ask(0, 2, question=2)) != {}


def test_a_question_about_a_paused_rank_needs_no_look() -> None:
    driven = job()
    driven.hear(RankPaused(rank=2, epoch=1))
    driven.sleep(2.0)
    why = answers(driven.ask(0, 2))[0]
    assert why == "rank 2 is paused since 2.0 s and is waited for for up to 5 s"
    patient = job(Policy.WAIT, max_pause_s=FOREVER)
    patient.hear(RankPaused(rank=2, epoch=1))
    assert answers(patient.ask(0, 2))[0].endswith("is waited for for ever")


def test_a_question_about_a_silent_host_says_so() -> None:
    driven = Driven(job_spec(hosts=2, per_host=1)).run()
    driven.sleep(3.0, beating=False)
    driven.beat(0)
    why = answers(driven.ask(0, 1))[0]
    assert why == "the host of rank 1, h1, was not heard for 3.0 s"


def test_an_answer_names_who_waits_itself_and_whose_output_stands() -> None:
    driven = job()
    driven.ask(0, 2)
    assert "waits in all_sum #5 for 1;" in answers(driven.look(2, wait_for(1)))[0]
    driven.ask(0, 1, question=2)
    assert "writes output that is not taken off yet" in answers(driven.look(1, output_blocked=True))[0]
    driven.now += 2 * FRESH_S
    driven.ask(0, 2, question=3)
    assert "waits in all_sum #5 for nobody" in answers(driven.look(2, wait_for()))[0]


def test_an_answer_names_a_few_and_counts_the_rest() -> None:
    driven = Driven(job_spec(per_host=8)).run()
    for rank in range(1, 8):
        driven.hear(RankPaused(rank=rank, epoch=1))
    assert answers(driven.ask(0, *range(1, 8)))[0].endswith("; and 3 more")


def test_what_a_rank_wrote_is_checked_before_use() -> None:
    driven = job()
    assert answers(driven.ask(0, 99, -3)) == {0: "it waits for nobody"}


def test_nobody_is_a_witness_against_itself() -> None:
    driven = job()
    assert set(answers(driven.ask(0, 0))) == {0}
    driven.sleep(60.0)
    assert driven.machine.epoch.losses.all == ()


def test_an_agent_that_answers_by_itself_closes_the_question() -> None:
    driven = job()
    driven.ask(0, 2)
    actions = driven.hear(QuestionAnswered(rank=0, epoch=1, question=1, why="alone"))
    assert answers(actions) == {0: "alone"}
    assert answers(driven.look(2)) == {}
    driven.ask(1, 2, question=1)
    driven.hear(QuestionAnswered(rank=1, epoch=1, question=0, why="old"))
    assert driven.machine.epoch.waits.detector.open_questions == 0


@pytest.mark.parametrize("who", [0, 2])
def test_who_ends_neither_waits_nor_holds_up(who: int) -> None:
    driven = job()
    driven.ask(0, 2)
    driven.ask(1, 2)
    driven.end(who, 0)
    detector = driven.machine.epoch.waits.detector
    assert detector.open_questions == (1 if who == 0 else 2) or not detector.late_since(2)


# ---- stragglers ----------------------------------------------------------------------------------


def late(driven: Driven, span_s: float, **look: object) -> list:  # type: ignore[type-arg]
    """Rank 2 keeps rank 0 waiting for ``span_s``; every look finds the same."""
    actions = []
    end = driven.now + span_s
    while driven.now < end:
        for action in driven.sleep(0.5):
            actions.append(action)
            if isinstance(action, SampleRanks):
                for rank in action.ranks:
                    if rank == 0:
                        actions += driven.look(0, wait_for(2))
                    else:
                        actions += driven.look(rank, **look)  # type: ignore[arg-type]
    return actions


def test_who_stands_still_past_the_limit_is_stuck() -> None:
    driven = job()
    driven.ask(0, 2)
    driven.look(2)
    assert said(late(driven, 19.0)) == ""
    actions = late(driven, 3.0)
    assert "rank 2 on h0: no movement for 20.0 s, and rank 0 waits for it in all_sum #5" in said(actions)
    assert of(WriteVerdict, actions, kind=VerdictKind.STOP)[0].ranks == (2,)


@pytest.mark.parametrize("excuse", [{"progress": 2}, {"reports": 1}, {"output_blocked": True}])
def test_whatever_moves_excuses(excuse: dict[str, object]) -> None:
    """(3) Nobody who moves is ever lost: the clock starts again."""
    driven = job()
    driven.ask(0, 2)
    driven.look(2)
    late(driven, 15.0)
    assert said(late(driven, 10.0, **excuse)) == ""
    assert said(late(driven, 5.0, **{k: v for k, v in excuse.items() if k != "output_blocked"})) == ""


def test_a_silent_agent_is_an_excuse() -> None:
    driven = Driven(job_spec(hosts=2, per_host=1)).run()
    driven.ask(0, 1)
    driven.look(1)
    driven.sleep(15.0)
    for _ in range(8):
        driven.now += 1.0
        driven.beat(0)
        driven.wake()
    driven.beat(1)
    assert "lost" not in said(driven.done)
    assert looked_at(driven.sleep(19.0)) <= {1}
    assert driven.machine.epoch.losses.all == ()


def test_an_accusation_needs_a_witness_that_still_waits() -> None:
    driven = job()
    driven.ask(0, 2)
    driven.look(2)
    driven.sleep(20.0)
    driven.look(2)
    driven.look(0)
    assert driven.machine.epoch.losses.all == ()
    assert driven.machine.epoch.waits.detector.late_since(2) is None


def test_an_accusation_needs_a_witness_that_is_awake() -> None:
    """A paused witness cannot know whether the data has come."""
    driven = job()
    driven.ask(0, 2)
    driven.look(2)
    driven.sleep(20.0)
    driven.look(2)
    driven.look(0, wait_for(2), is_paused=True)
    assert driven.machine.epoch.losses.all == ()
    actions = late(driven, 2.0)
    assert "no movement" in said(actions)


def test_an_accusation_needs_a_look_at_the_accused() -> None:
    driven = job()
    driven.ask(0, 2)
    driven.look(2)
    driven.sleep(20.0)
    driven.look(0, wait_for(2))
    driven.sleep(LOOK_TIMEOUT_S)
    assert driven.machine.epoch.losses.all == ()


def test_an_accusation_needs_a_look_at_a_witness() -> None:
    driven = job()
    driven.ask(0, 2)
    driven.look(2)
    driven.sleep(20.0)
    driven.look(2)
    driven.sleep(LOOK_TIMEOUT_S)
    assert driven.machine.epoch.losses.all == ()


def test_who_moves_in_the_last_moment_is_not_accused() -> None:
    driven = job()
    driven.ask(0, 2)
    driven.look(2)
    driven.sleep(20.0)
    driven.look(2, progress=2)
    driven.look(0, wait_for(2))
    assert driven.machine.epoch.losses.all == ()
    assert said(late(driven, 15.0, progress=2)) == ""


def test_a_circle_needs_a_question_about_each_of_its_ranks() -> None:
    """1 was just seen waiting for 0, but has not waited for the deadline yet: not enough to accuse both."""
    driven = job()
    waits = {0: wait_for(1), 1: wait_for(0), 2: None}
    driven.ask(0, 1)
    for _ in range(60):
        for action in driven.sleep(0.5):
            if isinstance(action, SampleRanks):
                for rank in action.ranks:
                    driven.look(rank, waits[rank])
    assert driven.machine.epoch.losses.all == ()


def test_who_waits_for_a_late_one_is_not_to_blame() -> None:
    """0 waits for 1, 1 waits for 2, 2 computes: 2 is stuck, 1 is not."""
    driven = job()
    driven.ask(0, 1)
    driven.look(1, wait_for(2))
    driven.ask(1, 2)
    driven.look(2)
    waits = {0: wait_for(1), 1: wait_for(2), 2: None}
    for _ in range(60):
        for action in driven.sleep(0.5):
            if isinstance(action, SampleRanks):
                for rank in action.ranks:
                    driven.look(rank, waits[rank])
    assert {loss.rank for loss in driven.machine.epoch.losses.all} == {2}


def test_ranks_that_wait_for_one_another_are_a_deadlock() -> None:
    driven = job()
    waits = {0: wait_for(1), 1: wait_for(0), 2: wait_for(0, 1)}
    for rank in (0, 1, 2):
        driven.ask(rank, *waits[rank].waiting_for)
    for _ in range(60):
        for action in driven.sleep(0.5):
            if isinstance(action, SampleRanks):
                for rank in action.ranks:
                    driven.look(rank, waits[rank])
    assert {loss.rank for loss in driven.machine.epoch.losses.all} == {0, 1}
    assert "the ranks 0, 1 wait for one another, nothing moved for 20" in said(driven.done)


def test_a_circle_in_which_one_moves_is_none() -> None:
    driven = job()
    waits = {0: wait_for(1), 1: wait_for(0), 2: None}
    driven.ask(0, 1)
    driven.ask(1, 0)
    moves = 0
    for _ in range(90):
        for action in driven.sleep(0.5):
            if isinstance(action, SampleRanks):
                for rank in action.ranks:
                    moves += 1
                    driven.look(rank, waits[rank], progress=moves if rank == 1 else 1)
    assert driven.machine.epoch.losses.all == ()


# ---- pauses --------------------------------------------------------------------------------------


def test_a_pause_past_its_limit_that_holds_somebody_up_is_a_loss() -> None:
    driven = job()
    driven.hear(RankPaused(rank=2, epoch=1))
    driven.sleep(3.0)
    driven.ask(0, 2)
    assert looked_at(driven.sleep(1.9)) == set()
    assert looked_at(driven.sleep(0.2)) == {0, 2}
    driven.look(0, wait_for(2))
    actions = driven.look(2, is_paused=True)
    assert "rank 2 on h0: paused for 5.1 s, limit 5 s, and rank 0 waits for it" in said(actions)


def test_the_limit_counts_from_the_start_and_bites_when_somebody_waits() -> None:
    driven = job()
    driven.hear(RankPaused(rank=2, epoch=1))
    assert looked_at(driven.sleep(30.0)) == set()
    driven.ask(0, 2)
    assert looked_at(driven.sleep(0.1)) == {0, 2}


def test_who_was_resumed_a_moment_ago_is_not_lost() -> None:
    driven = job()
    driven.hear(RankPaused(rank=2, epoch=1))
    driven.ask(0, 2)
    driven.sleep(5.0)
    driven.look(0, wait_for(2))
    assert raises(driven.look(2, is_paused=False)) == {}
    driven.hear(RankResumed(rank=2, epoch=1))
    driven.sleep(10.0)
    assert driven.machine.epoch.losses.all == ()


def test_a_pause_in_between_starts_the_straggler_clock_again() -> None:
    driven = job()
    driven.ask(0, 2)
    driven.look(2)
    late(driven, 18.0)
    driven.hear(RankPaused(rank=2, epoch=1))
    driven.sleep(0.5)
    driven.hear(RankResumed(rank=2, epoch=1))
    assert said(late(driven, 10.0)) == ""


def test_a_pause_for_ever_is_waited_for() -> None:
    driven = job(Policy.WAIT, max_pause_s=FOREVER)
    driven.hear(RankPaused(rank=2, epoch=1))
    driven.ask(0, 2)
    driven.sleep(500.0)
    assert driven.machine.epoch.losses.all == ()


def test_a_wait_of_another_group_is_a_wait() -> None:
    driven = job()
    wait = Wait(collective=Collective.SEND, seq=1, size_bytes=8, waited_s=1.0, waiting_for=(2,), group=7)
    driven.hear(DeadlineAsked(rank=0, epoch=1, question=1, wait=wait))
    assert set(answers(driven.look(2))) == {0}
