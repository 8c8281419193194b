"""The base of all machines, and the timers."""

from __future__ import annotations

import enum
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jlaunch.core.errors import InvalidTransition
from jlaunch.core.events import Event, JobStarted, StopRequested
from jlaunch.core.machine import STORY_LENGTH, Machine, Timers


class Lamp(enum.Enum):
    OFF = enum.auto()
    ON = enum.auto()


TABLE: dict[tuple[Lamp, type[Event]], Lamp] = {
    (Lamp.OFF, JobStarted): Lamp.ON,
    (Lamp.ON, JobStarted): Lamp.OFF,
    (Lamp.ON, StopRequested): Lamp.ON,
}


def lamp() -> Machine[Lamp]:
    return Machine("lamp", Lamp.OFF, TABLE, 1.0)


def test_moves_as_the_table_says() -> None:
    machine = lamp()
    assert machine.accepts(JobStarted())
    assert not machine.accepts(StopRequested(signal=2))
    assert machine._move(JobStarted(), 2.0) is Lamp.ON
    assert (machine.state, machine.since) == (Lamp.ON, 2.0)


def test_a_step_to_the_same_state_is_no_news() -> None:
    machine = lamp()
    machine._move(JobStarted(), 2.0)
    machine._move(StopRequested(signal=2), 3.0)
    assert machine.since == 2.0
    assert len(machine.story) == 1


def test_a_bug_of_ours_carries_the_story() -> None:
    machine = lamp()
    with pytest.raises(InvalidTransition, match=r"(?s)lamp in OFF got StopRequested.*nothing yet"):
        machine._move(StopRequested(signal=2), 2.0)
    machine._move(JobStarted(), 2.5)
    machine._move(JobStarted(), 3.0)
    with pytest.raises(InvalidTransition) as error:
        machine._move(StopRequested(signal=2), 4.0)
    assert "2.500: OFF -> ON on JobStarted()" in str(error.value)
    assert "3.000: ON -> OFF" in str(error.value)


def test_the_story_is_bounded() -> None:
    machine = lamp()
    for at in range(3 * STORY_LENGTH):
        machine._move(JobStarted(), float(at))
    assert len(machine.story) == STORY_LENGTH
    assert machine.story[-1].at == 3 * STORY_LENGTH - 1


def test_timers_come_in_order() -> None:
    timers = Timers()
    timers.set("b", 2.0)
    timers.set("a", 1.0)
    timers.set("c", 3.0)
    assert timers.next() == 1.0
    assert timers.pop_due(0.5) is None
    assert timers.pop_due(2.5) == "a"
    assert timers.pop_due(2.5) == "b"
    assert timers.pop_due(2.5) is None
    assert timers.next() == 3.0


def test_a_timer_that_is_set_again_moves() -> None:
    timers = Timers()
    timers.set("a", 1.0)
    timers.set("a", 5.0)
    timers.set("a", 5.0)
    assert timers.next() == 5.0
    assert timers.pop_due(4.0) is None
    assert timers.pop_due(5.0) == "a"
    assert timers.next() is None


def test_a_timer_that_is_cancelled_never_comes() -> None:
    timers = Timers()
    timers.set("a", 1.0)
    assert timers.is_set("a")
    timers.cancel("a")
    timers.cancel("never armed")
    assert not timers.is_set("a")
    assert timers.next() is None
    timers.set("b", 1.0)
    timers.clear()
    assert timers.pop_due(9.0) is None


def test_never_is_not_a_moment() -> None:
    timers = Timers()
    timers.set("a", 1.0)
    timers.set("a", math.inf)
    assert timers.next() is None


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.one_of(st.none(), st.floats(0, 100)))))
def test_timers_agree_with_a_dictionary(steps: list[tuple[str, float | None]]) -> None:
    timers = Timers()
    model: dict[str, float] = {}
    for name, at in steps:
        if at is None:
            timers.cancel(name)
            model.pop(name, None)
        else:
            timers.set(name, at)
            model[name] = at
        assert timers.next() == min(model.values(), default=None)
    popped = []
    while (due := timers.pop_due(100.0)) is not None:
        popped.append(model[str(due)])
    assert popped == sorted(model.values())
