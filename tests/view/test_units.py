"""Spans, sizes, ranks."""

from __future__ import annotations

import math

import pytest

from jlaunch.view import units


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.0s"), (0.26, "0.3s"), (9.94, "9.9s"), (9.96, "10s"), (59.4, "59s"), (59.6, "1m 00s"),
        (133, "2m 13s"), (3599.6, "1h 00m"), (3725, "1h 02m"), (math.inf, "forever"),
    ],
)  # fmt: skip
def test_span(seconds: float, text: str) -> None:
    assert units.span(seconds) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (16 * 2**20, "16.0 MiB"), (3 * 2**40, "3.0 TiB"), (2**52, "4096.0 TiB")],
)  # fmt: skip
def test_size(size_bytes: int, text: str) -> None:
    assert units.size(size_bytes) == text


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([3], "3"), ([1, 0], "0-1"), ([7, 0, 1, 2, 9, 8], "0-2,7-9"), ([1, 3, 5], "1,3,5")],
)
def test_ranks(numbers: list[int], text: str) -> None:
    assert units.ranks(numbers) == text


def test_fitted() -> None:
    assert units.fitted("abc", 3) == "abc"
    assert units.fitted("abcd", 3) == "ab…"
