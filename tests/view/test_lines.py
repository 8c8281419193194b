"""The prefixer: whole lines, nothing lost, nothing torn."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from jlaunch.view.lines import HOLD_MAX_BYTES, HOLD_S, LinePrefixer, prefix_of, wants_colour

OUT, ERR = 1, 2


def test_complete_lines_go_out_at_once_with_their_rank() -> None:
    sheet = LinePrefixer()
    assert sheet.feed(2, OUT, b"one\ntwo\n", 0.0) == b"[2] one\n[2] two\n"
    assert sheet.next_deadline() is None


def test_an_empty_line_has_its_prefix() -> None:
    assert LinePrefixer().feed(0, OUT, b"\n\n", 0.0) == b"[0] \n[0] \n"


def test_a_line_in_two_writes_is_one_line() -> None:
    sheet = LinePrefixer()
    assert sheet.feed(0, OUT, b"hello", 0.0) == b""
    assert sheet.feed(1, OUT, b"world\n", 0.001) == b"[1] world\n"
    assert sheet.feed(0, OUT, b"\n", 0.002) == b"[0] hello\n"


def test_a_prompt_appears_within_its_bound_and_its_owner_writes_on() -> None:
    sheet = LinePrefixer()
    assert sheet.feed(0, OUT, b"name? ", 1.0) == b""
    assert sheet.next_deadline() == 1.0 + HOLD_S <= 1.1
    assert sheet.flush(1.0 + HOLD_S) == b"[0] name? "
    assert sheet.next_deadline() is None
    assert sheet.feed(0, OUT, b"Ada", 2.0) == b"Ada"
    assert sheet.feed(0, OUT, b"\n", 3.0) == b"\n"


def test_more_of_a_held_beginning_does_not_put_its_hold_off() -> None:
    sheet = LinePrefixer()
    sheet.feed(0, OUT, b"a", 1.0)
    sheet.feed(0, OUT, b"b", 1.0 + HOLD_S / 2)
    assert sheet.next_deadline() == 1.0 + HOLD_S
    assert sheet.flush(1.0 + HOLD_S) == b"[0] ab"


def test_an_open_line_is_closed_for_another_rank_and_reopened() -> None:
    sheet = LinePrefixer()
    sheet.feed(0, OUT, b"working", 0.0)
    assert sheet.flush(1.0) == b"[0] working"
    assert sheet.feed(1, OUT, b"hi\n", 1.0) == b"\n[1] hi\n"
    assert sheet.feed(0, OUT, b" done\n", 1.1) == b"[0]  done\n"


def test_stderr_of_a_rank_does_not_tear_its_stdout() -> None:
    sheet = LinePrefixer()
    sheet.feed(0, OUT, b"half", 0.0)
    sheet.flush(1.0)
    assert sheet.feed(0, ERR, b"warning\n", 1.0) == b"\n[0] warning\n"


def test_a_progress_bar_keeps_its_prefix_after_each_return() -> None:
    sheet = LinePrefixer()
    sheet.feed(3, OUT, b"\r 10%", 0.0)
    assert sheet.flush(1.0) == b"\r[3]  10%"
    assert sheet.feed(3, OUT, b"\r 20%", 1.1) == b"\r[3]  20%"
    assert sheet.feed(3, OUT, b"\n", 1.2) == b"\n"


def test_a_bar_that_ends_in_a_return_is_closed_below_itself() -> None:
    sheet = LinePrefixer()
    sheet.feed(0, OUT, b"50%\r", 0.0)
    assert sheet.flush(1.0) == b"[0] 50%\r"
    assert sheet.feed(1, OUT, b"x\n", 1.0) == b"\n[1] x\n"


def test_carriage_return_newline_is_one_end_of_line() -> None:
    sheet = LinePrefixer()
    assert sheet.feed(0, OUT, b"dos\r\n\r\nend\r\n", 0.0) == b"[0] dos\r\n\r[0] \n[0] end\r\n"


def test_a_cut_character_is_held_until_it_is_whole() -> None:
    sheet = LinePrefixer()
    euro = "€".encode()
    sheet.feed(0, OUT, b"5 " + euro[:2], 0.0)
    assert sheet.flush(1.0) == b"[0] 5 "
    assert sheet.feed(0, OUT, euro[2:], 1.0) == euro


def test_bytes_that_are_no_utf8_pass() -> None:
    sheet = LinePrefixer()
    sheet.feed(0, OUT, b"\xff\x80\x80\x80", 0.0)
    assert sheet.flush(1.0) == b"[0] \xff\x80\x80\x80"
    sheet.feed(0, OUT, b"\xc3", 1.0)
    assert sheet.feed(0, OUT, b"", 1.0) == b"\xc3"


def test_a_very_long_beginning_is_not_kept_in_memory() -> None:
    sheet = LinePrefixer()
    assert sheet.feed(0, OUT, b"x" * (HOLD_MAX_BYTES + 1), 0.0) == b"[0] " + b"x" * (HOLD_MAX_BYTES + 1)


def test_the_end_of_a_stream_lets_go_of_what_was_held() -> None:
    sheet = LinePrefixer()
    sheet.feed(0, OUT, b"last words", 0.0)
    assert sheet.feed(0, OUT, b"", 0.0) == b"[0] last words"
    assert sheet.interrupt() == b"\n"
    assert sheet.interrupt() == b""


def test_close_completes_the_sheet() -> None:
    sheet = LinePrefixer()
    sheet.feed(0, OUT, b"a", 0.0)
    sheet.feed(1, OUT, b"b", 0.0)
    assert sheet.close() == b"[0] a\n[1] b\n"


def test_raw_inserts_nothing() -> None:
    sheet = LinePrefixer(raw=True)
    out = sheet.feed(0, OUT, b"a\nhalf", 0.0) + sheet.feed(1, OUT, b"b\n", 0.0)
    assert out == b"a\nb\n"
    assert sheet.close() == b"half"


def test_colours_differ_between_neighbours_and_are_reset() -> None:
    first, second = prefix_of(0, colour=True), prefix_of(1, colour=True)
    assert first != second
    assert first.endswith(b"[0]\x1b[0m ")
    assert LinePrefixer(colour=True).feed(0, OUT, b"x\n", 0.0) == first + b"x\n"


def test_colour_is_for_terminals_and_no_color_wins() -> None:
    assert wants_colour(is_terminal=True, environ={"TERM": "xterm"})
    assert not wants_colour(is_terminal=False, environ={"TERM": "xterm"})
    assert not wants_colour(is_terminal=True, environ={"TERM": "dumb"})
    assert not wants_colour(is_terminal=True, environ={"NO_COLOR": "1"})
    assert wants_colour(is_terminal=True, environ={"NO_COLOR": ""})


TEXT = st.lists(st.sampled_from(["a", "é", "€", "𝄞", " ", "\n", "bc"]), max_size=12).map(
    lambda p: "".join(p).encode()
)
CHUNKS = st.lists(st.tuples(st.integers(0, 2), TEXT, st.integers(0, 12), st.floats(0, 0.2)), max_size=30)


@given(CHUNKS)
def test_any_cutting_loses_nothing_and_tears_no_line(chunks: list[tuple[int, bytes, int, float]]) -> None:
    """Cut anywhere, also inside characters, with any timing: what each rank wrote is what the sheet says."""
    sheet, now, out = LinePrefixer(), 0.0, b""
    written = dict.fromkeys(range(3), b"")
    for rank, data, cut, pause in chunks:
        for piece in (data[:cut], data[cut:]):
            if piece:
                written[rank] += piece
                out += sheet.feed(rank, OUT, piece, now)
        now += pause
        out += sheet.flush(now)
        deadline = sheet.next_deadline()
        assert deadline is None or now < deadline <= now + HOLD_S
    out += sheet.close()
    out.decode()
    lines = out.decode().split("\n")
    assert lines.pop() == ""
    seen = dict.fromkeys(range(3), "")
    for line in lines:
        match = re.fullmatch(r"\[(\d)\] ([^\[\]]*)", line)
        assert match, f"torn: {line!r}"
        seen[int(match[1])] += match[2]
    for rank, data in written.items():
        assert seen[rank] == data.decode().replace("\n", ""), f"rank {rank}"


@given(CHUNKS)
def test_raw_is_exactly_what_was_written(chunks: list[tuple[int, bytes, int, float]]) -> None:
    sheet, now, out = LinePrefixer(raw=True), 0.0, b""
    for _, data, _, pause in chunks:
        if data:
            out += sheet.feed(0, OUT, data, now)
        now += pause
        out += sheet.flush(now)
    assert out + sheet.close() == b"".join(data for _, data, _, _ in chunks)
