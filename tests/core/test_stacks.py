"""Where a late rank is: asked once, told in a few words."""

from __future__ import annotations

from jlaunch.core.actions import AskForStack, TakeStack
from jlaunch.core.events import StackTaken
from jlaunch.core.stacks import place_of
from tests.core.agent_driving import Agent
from tests.core.agent_driving import of as deeds_of
from tests.core.driving import Driven, of, said, wait_for

DUMP = (
    "Thread 0x00007f16611566c0 (most recent call first):",
    '  File "/home/me/helpers.py", line 5 in beat',
    '  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap',
    "Current thread 0x00007f166640cb80 (most recent call first):",
    '  File "/venv/lib/python3.11/site-packages/torch/x.py", line 1 in wait',
    '  File "/home/me/train it.py", line 41 in evaluate',
    '  File "/home/me/train it.py", line 60 in <module>',
)


def test_the_innermost_frame_of_the_program_in_its_main_thread() -> None:
    assert place_of(DUMP) == "train it.py:41 in evaluate"
    assert place_of(DUMP[:3]) == "helpers.py:5 in beat"
    assert place_of(DUMP[3:5]) == "x.py:1 in wait"
    assert place_of(()) == ""
    assert place_of(("Fatal Python error",)) == ""


def test_a_late_rank_is_asked_once_until_it_has_moved() -> None:
    job = Driven().run()
    job.ask(0, 2)
    assert of(TakeStack, job.look(2)) == [TakeStack(host=0, rank=2, epoch=1)]
    job.sleep(1.0)
    job.ask(0, 2, question=2)
    assert of(TakeStack, job.look(2)) == []
    job.sleep(1.0)
    job.ask(0, 2, question=3)
    assert of(TakeStack, job.look(2, progress=9)) == [TakeStack(host=0, rank=2, epoch=1)]


def test_who_waits_itself_is_not_asked() -> None:
    job = Driven().run()
    job.ask(0, 1)
    assert of(TakeStack, job.look(1, wait_for(2))) == []


def test_the_place_is_told_at_once_and_again_with_the_loss() -> None:
    job = Driven().run()
    job.ask(0, 2)
    job.look(2)
    assert "rank 2 on h0 is late: train it.py:41 in evaluate" in said(
        job.hear(StackTaken(rank=2, epoch=1, lines=DUMP))
    )
    for _ in range(60):
        for action in job.sleep(0.5):
            for rank in getattr(action, "ranks", ()):
                job.look(rank, wait_for(2) if rank == 0 else None)
    assert "waits for it in all_sum #5; it was last seen at train it.py:41 in evaluate" in said(job.done)


def test_why_there_is_no_stack_is_told() -> None:
    job = Driven().run()
    job.ask(0, 2)
    job.look(2)
    assert "rank 2 on h0 is late: where it is cannot be told: not armed" in said(
        job.hear(StackTaken(rank=2, epoch=1, error="not armed"))
    )


def test_an_agent_asks_only_who_holds_a_claim() -> None:
    agent = Agent().start().form(2).run(3)
    assert deeds_of(AskForStack, agent.feed(TakeStack(host=1, rank=2, epoch=1))) == [
        AskForStack(rank=2, epoch=1)
    ]
    assert deeds_of(AskForStack, agent.feed(TakeStack(host=1, rank=3, epoch=1))) == []
    assert deeds_of(AskForStack, agent.feed(TakeStack(host=1, rank=2, epoch=2))) == []
