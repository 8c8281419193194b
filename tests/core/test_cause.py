"""Root cause, exit code, the line for people."""

from __future__ import annotations

import pytest

from jlaunch.core.cause import (
    CAUSE_WINDOW_S,
    Cause,
    CauseKind,
    Inquest,
    death_kind,
    ended_text,
    exit_code,
    signal_text,
)


def cause(kind: CauseKind, at: float = 0.0, *, status: int | None = None, rank: int = 1) -> Cause:
    return Cause(kind=kind, at=at, text=f"{kind.value} {rank}", ranks=(rank,), status=status)


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        (CauseKind.EXITED, 3, 3),
        (CauseKind.KILLED, -9, 137),
        (CauseKind.KILLED, -11, 139),
        (CauseKind.EXITED, None, 73),
        (CauseKind.SPAWN_FAILED, None, 69),
        (CauseKind.INIT_FAILED, None, 69),
        (CauseKind.INIT_FAILED, 1, 1),
        (CauseKind.START_TIMEOUT, None, 69),
        (CauseKind.FINISHED_EARLY, None, 73),
        (CauseKind.STUCK, None, 74),
        (CauseKind.PAUSED, None, 75),
        (CauseKind.DESYNC, None, 76),
        (CauseKind.HOST_LOST, None, 68),
        (CauseKind.CONTROL_LOST, None, 72),
        (CauseKind.INTERNAL, None, 70),
        (CauseKind.UNKILLABLE, None, 71),
        (CauseKind.STOPPED, -2, 130),
        (CauseKind.STOPPED, -15, 143),
        (CauseKind.STOPPED, -1, 129),
        (CauseKind.STOPPED, -3, 131),
    ],
)
def test_exit_codes(kind: CauseKind, status: int | None, code: int) -> None:
    assert exit_code(cause(kind, status=status)) == code


def test_every_kind_has_a_code() -> None:
    for kind in CauseKind:
        assert exit_code(cause(kind)) != 0


def test_words() -> None:
    assert signal_text(9) == "SIGKILL (signal 9)"
    assert signal_text(999) == "signal 999"
    assert ended_text(None) == "died"
    assert ended_text(-11) == "was killed by SIGSEGV (signal 11)"
    assert ended_text(4) == "exited with code 4"
    assert death_kind(None) is death_kind(3) is CauseKind.EXITED
    assert death_kind(-6) is CauseKind.KILLED


def test_nothing_to_blame() -> None:
    inquest = Inquest()
    assert not inquest
    assert (inquest.root(), inquest.exit_code(), inquest.text(), inquest.blamed_ranks()) == (None, 0, "", ())


def test_the_first_cause_wins() -> None:
    inquest = Inquest()
    inquest.record(cause(CauseKind.STUCK, 1.0))
    inquest.record(cause(CauseKind.EXITED, 2.0, status=3))
    assert inquest.exit_code() == 74
    assert inquest.text() == "stuck 1"


@pytest.mark.parametrize(("gap_s", "code"), [(CAUSE_WINDOW_S / 2, 137), (2 * CAUSE_WINDOW_S, 1)])
def test_sigkill_outranks_an_exit_just_before_it(gap_s: float, code: int) -> None:
    """A peer's socket error may be seen before the death that led to it."""
    inquest = Inquest()
    inquest.record(cause(CauseKind.EXITED, 1.0, status=1, rank=0))
    inquest.record(cause(CauseKind.KILLED, 1.0 + gap_s, status=-9, rank=2))
    assert inquest.exit_code() == code


def test_sigkill_outranks_no_other_kind_of_cause() -> None:
    inquest = Inquest()
    inquest.record(cause(CauseKind.PAUSED, 1.0))
    inquest.record(cause(CauseKind.KILLED, 1.1, status=-9))
    assert inquest.exit_code() == 75
    inquest = Inquest()
    inquest.record(cause(CauseKind.EXITED, 1.0, status=1))
    inquest.record(cause(CauseKind.KILLED, 1.1, status=-6))
    assert inquest.exit_code() == 1


def test_two_that_fall_at_once_are_both_named() -> None:
    inquest = Inquest()
    for rank in (1, 3):
        inquest.record(cause(CauseKind.KILLED, 1.0 + rank / 100, status=-11, rank=rank))
    inquest.record(cause(CauseKind.KILLED, 5.0, status=-11, rank=5))
    inquest.record(cause(CauseKind.EXITED, 1.0, status=1, rank=6))
    assert inquest.text() == "killed 1; killed 3"
    assert inquest.blamed_ranks() == (1, 3)


def test_what_cannot_be_killed_decides_the_code_and_is_named() -> None:
    inquest = Inquest()
    inquest.record(cause(CauseKind.UNKILLABLE, 9.0, rank=4))
    assert inquest
    assert (inquest.exit_code(), inquest.text()) == (71, "unkillable 4")
    inquest.record(cause(CauseKind.EXITED, 1.0, status=3))
    assert (inquest.exit_code(), inquest.text()) == (71, "exited 1; unkillable 4")
    assert len(inquest.causes) == 2


def test_a_status_that_comes_later_is_filled_in() -> None:
    inquest = Inquest()
    inquest.record(cause(CauseKind.EXITED, 1.0, rank=2))
    inquest.record(cause(CauseKind.INIT_FAILED, 1.0, rank=3))
    inquest.record(cause(CauseKind.STUCK, 1.0, rank=2))
    inquest.amend(2, -11, "rank 2 was killed")
    inquest.amend(3, 1, "not this")
    inquest.amend(3, 5, "nor this: it has one")
    first, second, third = inquest.causes
    assert (first.kind, first.status, first.text) == (CauseKind.KILLED, -11, "rank 2 was killed")
    assert (second.kind, second.status, second.text) == (CauseKind.INIT_FAILED, 1, "init failed 3")
    assert third.status is None


def test_a_signal_is_no_code_of_a_failed_init() -> None:
    inquest = Inquest()
    inquest.record(cause(CauseKind.INIT_FAILED, 1.0, rank=3))
    inquest.amend(3, -15, "")
    assert inquest.exit_code() == 69
