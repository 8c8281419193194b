"""The lease of an agent: how long its ranks may live without a word from above.

Rules of this file. A renewal counts from the moment when the agent sent the heartbeat that it echoes,
not from when the renewal arrived: so the supervisor, which heard that heartbeat before it let go of
the host, knows a moment after which the lease has surely lapsed, however long its own words lay in
the network.
"""

from __future__ import annotations

from collections import deque


class Lease:
    """One agent's lease, in its own clock."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._beats: deque[tuple[int, float]] = deque()
        self._count = 0
        self.lapses_at = 0.0

    def begin(self, now: float) -> None:
        """The agent came up: the first lease is granted by its start."""
        self._beats.append((0, now))
        self.lapses_at = now + self._span_s

    def next_beat(self, now: float) -> int:
        """Number the heartbeat that is sent now."""
        self._count += 1
        self._beats.append((self._count, now))
        return self._count

    def renew(self, beat: int) -> None:
        """A renewal that echoes ``beat``; an echo of a beat never sent, or long past, is void."""
        while self._beats and self._beats[0][0] < beat:
            self._beats.popleft()
        if self._beats and self._beats[0][0] == beat:
            self.lapses_at = max(self.lapses_at, self._beats[0][1] + self._span_s)
