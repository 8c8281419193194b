"""How often a job starts again."""

from __future__ import annotations

import random

import pytest

from jlaunch.core.budget import HEALTH_S, JITTER, RESTART_DELAY_MAX_S, RestartBudget


def budget(max_restarts: int = 3, backoff_s: float = 1.0) -> RestartBudget:
    return RestartBudget(max_restarts, backoff_s, rng=random.Random(1))


def test_the_first_is_at_once_then_the_delay_doubles() -> None:
    delays = [delay for delay in map(budget(5).spend, [0.0] * 5) if delay is not None]
    assert delays[0] == 0.0
    for delay, nominal in zip(delays[1:], (1.0, 2.0, 4.0, 8.0), strict=True):
        assert nominal * (1 - JITTER) <= delay <= nominal


def test_the_delay_is_capped() -> None:
    tight = budget(2000)
    for _ in range(1999):
        tight.spend(0.0)
    assert tight.spend(0.0) == pytest.approx(RESTART_DELAY_MAX_S, rel=JITTER)


def test_the_budget_ends() -> None:
    spent = budget(2)
    assert spent.has_left(0.0)
    spent.spend(0.0)
    spent.spend(0.0)
    assert not spent.has_left(0.0)
    assert spent.spend(0.0) is None
    assert spent.spent == 2


def test_health_wins_it_back() -> None:
    spent = budget(1)
    spent.spend(0.0)
    assert spent.spend(HEALTH_S - 1) is None
    assert spent.has_left(HEALTH_S)
    assert spent.spend(HEALTH_S) == 0.0


def test_no_budget_is_no_budget_however_healthy() -> None:
    assert not budget(0).has_left(HEALTH_S)
    assert budget(0).spend(HEALTH_S) is None
