"""The last words of a job."""

from __future__ import annotations

from jlaunch.view.ending import TAIL_LINES, render_ending


def test_one_line_and_what_the_rank_said_last() -> None:
    shown = render_ending("rank 2 (127.0.0.1) exited with code 3", {2: ("Traceback …", "ValueError: x")})
    assert shown == (
        "jlaunch: rank 2 (127.0.0.1) exited with code 3\n"
        "jlaunch: the last lines that rank 2 wrote to stderr:\n"
        "[2] Traceback …\n"
        "[2] ValueError: x\n"
    )


def test_nothing_when_all_went_well() -> None:
    assert render_ending("", {}) == ""


def test_a_silent_rank_has_no_heading() -> None:
    assert render_ending("rank 2 was killed", {2: ()}) == "jlaunch: rank 2 was killed\n"


def test_the_tail_is_bounded() -> None:
    shown = render_ending("x", {0: [str(n) for n in range(100)]})
    assert len(shown.splitlines()) == TAIL_LINES + 2
    assert shown.endswith("[0] 99\n")
