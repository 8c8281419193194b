"""How often a job may start again, and when.

The first restart is at once: most losses are accidents, and the user waits. Then the delay doubles,
so that a rank which dies at once every time does not spin, and is capped, so that a flaky machine is
tried again within minutes. Health wins the budget back. Every failed start spends it, whatever
failed: a crash, a start timeout, a stall, an ``init``; else a job could restart for ever (and drain
a pool of RDMA resources) by failing early.
"""

from __future__ import annotations

import random

RESTART_DELAY_MAX_S = 300.0
"""Cap of the doubling delay: five minutes, as Kubernetes caps its crash loop."""

HEALTH_S = 600.0
"""An epoch that ran so long was healthy: the count starts again (also Kubernetes' figure)."""

JITTER = 0.1
"""Share of the delay that is random, so that jobs felled by one event do not return in step."""


class RestartBudget:
    """Restarts left, and the delay before the next."""

    def __init__(self, max_restarts: int, backoff_s: float, *, rng: random.Random) -> None:
        self.max_restarts = max_restarts
        self._backoff_s = backoff_s
        self._rng = rng
        self._spent = 0

    @property
    def spent(self) -> int:
        """Restarts since the start, or since the last healthy epoch."""
        return self._spent

    def has_left(self, healthy_s: float) -> bool:
        """Whether ``spend`` would give a restart."""
        return self.max_restarts > 0 and (healthy_s >= HEALTH_S or self._spent < self.max_restarts)

    def spend(self, healthy_s: float) -> float | None:
        """Take one restart after an epoch that ran for ``healthy_s``.

        Returns the delay in seconds, 0 for the first, or None if none is left.
        """
        if healthy_s >= HEALTH_S:
            self._spent = 0
        if self._spent >= self.max_restarts:
            return None
        self._spent += 1
        return self._delay_s(self._spent)

    def _delay_s(self, nth: int) -> float:
        if nth == 1:
            return 0.0
        # The exponent is bounded because a float's is: 2 ** 1074 times anything is past the cap.
        delay_s: float = min(self._backoff_s * 2.0 ** min(nth - 2, 64), RESTART_DELAY_MAX_S)
        return delay_s * (1.0 - JITTER * self._rng.random())
