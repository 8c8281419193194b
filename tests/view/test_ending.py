"""The last words of a job."""

from __future__ import annotations

from jlaunch.view.ending import TAIL_LINES, ending_lines


def test_what_the_rank_said_last_and_then_why() -> None:
    assert ending_lines(
        3, "rank 2 on 127.0.0.1 exited with code 3", {2: ("Traceback …", "ValueError: x")}
    ) == [
        "jlaunch: the last lines of rank 2 on stderr:",
        "  [2] Traceback …",
        "  [2] ValueError: x",
        "jlaunch: ended with code 3: rank 2 on 127.0.0.1 exited with code 3",
    ]


def test_nothing_when_all_went_well() -> None:
    assert ending_lines(0, "", {}) == []


def test_a_silent_rank_has_no_heading() -> None:
    assert ending_lines(137, "rank 2 was killed", {2: ()}) == [
        "jlaunch: ended with code 137: rank 2 was killed"
    ]


def test_ranks_in_order_and_tails_bounded() -> None:
    lines = ending_lines(1, "x", {1: ("one",), 0: [str(n) for n in range(100)]})
    assert len(lines) == 1 + TAIL_LINES + 2 + 1
    assert lines[TAIL_LINES] == "  [0] 99"
    assert lines[TAIL_LINES + 1].endswith("rank 1 on stderr:")
