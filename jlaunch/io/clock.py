"""The clock port: monotonic seconds for every deadline, wall-clock seconds for what people read."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What a loop needs to know of time."""

    def now(self) -> float:
        """Monotonic seconds; only differences mean something."""
        ...

    def unix_time(self) -> float:
        """Seconds since the epoch, for logs; may jump."""
        ...


class SystemClock:
    """The machine's clocks. The monotonic one stands still while the machine sleeps."""

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def unix_time(self) -> float:
        """Seconds since the epoch."""
        return time.time()
