"""A link that delivers each message once and in order, over a network that may do anything.

What TCP and ZeroMQ give while a connection lives, modelled by itself so that the network below may
drop, delay, reorder and repeat whatever it likes: numbers, cumulative acknowledgements, go back N.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

RESEND_S = 0.3
ACK_DELAY_S = 0.04


class Frame(NamedTuple):
    """One datagram. ``seq`` 0: unnumbered, may be lost (heartbeats, renewals, acknowledgements)."""

    seq: int
    ack: int
    data: bytes


class Link:
    """One end."""

    def __init__(self) -> None:
        self._next = 1
        self._unacked: deque[tuple[int, bytes]] = deque()
        self._taken = 0
        self.resend_at: float | None = None
        self.ack_at: float | None = None

    def send(self, data: bytes, now: float) -> Frame:
        """Number ``data``."""
        seq = self._next
        self._next += 1
        self._unacked.append((seq, data))
        if self.resend_at is None:
            self.resend_at = now + RESEND_S
        self.ack_at = None
        return Frame(seq, self._taken, data)

    def send_loose(self, data: bytes) -> Frame:
        """Send without a number."""
        self.ack_at = None
        return Frame(0, self._taken, data)

    def receive(self, frame: Frame, now: float) -> bytes | None:
        """The data to deliver, or None."""
        unacked = self._unacked
        while unacked and unacked[0][0] <= frame.ack:
            unacked.popleft()
        if not unacked:
            self.resend_at = None
        if frame.seq == 0:
            return frame.data or None
        if self.ack_at is None:
            self.ack_at = now + ACK_DELAY_S
        if frame.seq != self._taken + 1:
            return None
        self._taken = frame.seq
        return frame.data

    def due(self, now: float) -> list[Frame]:
        """What to send (again) now."""
        frames = []
        if self.resend_at is not None and self.resend_at <= now:
            frames = [Frame(seq, self._taken, data) for seq, data in self._unacked]
            self.resend_at = now + RESEND_S
            self.ack_at = None
        if self.ack_at is not None and self.ack_at <= now:
            frames.append(Frame(0, self._taken, b""))
            self.ack_at = None
        return frames

    def next_deadline(self) -> float | None:
        """When ``due`` has something."""
        if self.resend_at is None:
            return self.ack_at
        return self.resend_at if self.ack_at is None else min(self.resend_at, self.ack_at)
