"""The state now, for people: what ``jlaunch status --json``, the dashboards and the metrics read.

Frozen and versioned. ``SCHEMA`` grows by one when a field changes its meaning or goes; new fields do
not change it. Ages and spans are seconds, measured at the moment of the snapshot.
"""

from __future__ import annotations

from typing import Final

import msgspec

SCHEMA: Final = 1
"""Version of this schema, in every snapshot."""


class WaitView(msgspec.Struct, frozen=True, kw_only=True):
    """The collective that a rank is in."""

    collective: str
    seq: int
    size_bytes: int
    waiting_for: tuple[int, ...]
    waited_s: float


class RankView(msgspec.Struct, frozen=True, kw_only=True):
    """One rank. ``state``: starting running waiting paused late stopping lost exited.

    ``age_s`` is how long it has been in this state. ``status`` in ``subprocess`` form once it has
    exited. ``reason`` is why it is lost. ``report`` are the last numbers of ``jlaunch.report``.
    """

    rank: int
    host: int
    state: str
    age_s: float
    pid: int | None = None
    wait: WaitView | None = None
    report: dict[str, float] = {}
    status: int | None = None
    reason: str | None = None


class HostView(msgspec.Struct, frozen=True, kw_only=True):
    """One host. ``state``: connecting ready suspect lost. ``heard_s``: since its agent was heard."""

    host: int
    name: str
    state: str
    heard_s: float | None
    agent_pid: int | None = None


class Happening(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the recent past."""

    ago_s: float
    text: str


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A job, whole. ``phase`` is the job machine's state in lower case.

    ``exit_code`` and ``cause`` are set when the job has ended. ``dropped`` counts events that were
    not for this epoch, this host or this state.
    """

    schema: int = SCHEMA
    job: str
    policy: str
    epoch: int
    phase: str
    age_s: float
    restarts: int
    max_restarts: int
    hosts: tuple[HostView, ...]
    ranks: tuple[RankView, ...]
    happenings: tuple[Happening, ...] = ()
    dropped: int = 0
    exit_code: int | None = None
    cause: str = ""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Snapshot)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The snapshot as one JSON object in UTF-8 (an infinite or unknown number becomes null)."""
    return _encoder.encode(snapshot)


def decode_snapshot(data: bytes) -> Snapshot:
    """The snapshot that ``encode_snapshot`` wrote; raises ``msgspec.MsgspecError`` on anything else."""
    return _decoder.decode(data)
