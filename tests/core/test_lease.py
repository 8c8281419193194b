"""An agent's lease."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jlaunch.core.lease import Lease


def lease() -> Lease:
    begun = Lease(10.0)
    begun.begin(100.0)
    return begun


def test_the_start_grants_the_first() -> None:
    assert lease().lapses_at == 110.0


def test_a_renewal_counts_from_the_beat_that_it_echoes() -> None:
    begun = lease()
    assert begun.next_beat(101.0) == 1
    assert begun.next_beat(102.0) == 2
    begun.renew(1)
    assert begun.lapses_at == 111.0
    begun.renew(2)
    assert begun.lapses_at == 112.0


def test_an_old_echo_or_a_wrong_one_grants_nothing() -> None:
    begun = lease()
    begun.next_beat(101.0)
    begun.next_beat(102.0)
    begun.renew(2)
    begun.renew(1)
    begun.renew(0)
    assert begun.lapses_at == 112.0
    begun.renew(99)
    begun.renew(2)
    assert begun.lapses_at == 112.0


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=40))
def test_it_never_outlives_the_newest_beat_by_more_than_a_span(steps: list[tuple[bool, int]]) -> None:
    begun, now, newest = lease(), 100.0, 100.0
    for is_beat, echo in steps:
        now += 1.0
        before = begun.lapses_at
        if is_beat:
            begun.next_beat(now)
            newest = now
        else:
            begun.renew(echo)
        assert before <= begun.lapses_at <= newest + 10.0
