"""A first helping of random schedules; ``make check`` runs the full count through ``tests.sim.run``."""

from __future__ import annotations

import pytest

from tests.sim.run import run_many, simulate
from tests.sim.schedule import draw


@pytest.mark.parametrize("first", range(1, 301, 50))
def test_random_schedules_keep_every_promise(first: int) -> None:
    """Safety after every step, the right end, nothing left behind."""
    assert run_many(range(first, first + 50), None, 1) == []


def test_three_hundred_hosts() -> None:
    """The same, with as many hosts as anybody has."""
    assert run_many(range(3, 4), 300, 1) == []


def test_a_seed_is_the_whole_story() -> None:
    """The same seed gives the same run, step by step."""
    logs: list[list[str]] = [[], []]
    for log in logs:
        simulate(draw(7), log=log)
    assert logs[0] == logs[1]
    assert logs[0]
