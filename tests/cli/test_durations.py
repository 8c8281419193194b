"""Durations, as flags and job files write them."""

from __future__ import annotations

import math

import pytest

from jlaunch.cli.durations import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("10s", 10.0), ("1.5s", 1.5), ("5m", 300.0), ("2h", 7200.0), ("0s", 0.0), (" 3s ", 3.0)],
)
def test_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


def test_forever() -> None:
    assert parse_duration("forever") == math.inf


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s",
        "10",
        "10 s",
        "-1s",
        "+1s",
        "1e3s",
        "infs",
        "nans",
        "inf",
        "1.s",
        ".5s",
        "1..5s",
        "10S",
        "10d",
        "1m30s",
        "٣s",
    ],
)
def test_anything_else_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration such as 500ms, 10s, 5m, 2h or forever"):
        parse_duration(text)


def test_a_bare_number_gets_a_hint() -> None:
    with pytest.raises(ValueError, match=r"found '10', .*did you mean 10s\?"):
        parse_duration("10")
