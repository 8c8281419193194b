"""What the detector finds, and the case that it keeps on a rank that holds others up."""

from __future__ import annotations

from typing import NamedTuple

from jlaunch.core.contract import Reason


class Answer(NamedTuple):
    """Answer the question of ``rank``: keep waiting."""

    rank: int
    question: int
    why: str


class Look(NamedTuple):
    """Sample these ranks."""

    ranks: tuple[int, ...]


class Accusation(NamedTuple):
    """``ranks`` hold the others up past their limit."""

    ranks: tuple[int, ...]
    reason: Reason
    why: str


class NeedsLost(NamedTuple):
    """``rank`` asks, and waits for ``lost`` that is lost or gone: answer it with the losses."""

    rank: int
    question: int
    lost: int


Finding = Answer | Look | Accusation | NeedsLost


class HoldUp:
    """One rank that somebody asked about, and who did."""

    def __init__(self, rank: int, now: float) -> None:
        self.rank = rank
        self.askers: dict[int, None] = {}
        self.since = now
        self.still_since = now
        self.moved: tuple[int, int] | None = None
        self.verifying_since: float | None = None
        self.evidence: tuple[int, ...] = ()
