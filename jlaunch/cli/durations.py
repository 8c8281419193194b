"""Spans of time as people write them: ``500ms``, ``10s``, ``5m``, ``2h``, ``forever``."""

from __future__ import annotations

import math

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

EXPECTED = "a duration such as 500ms, 10s, 5m, 2h or forever"


def parse_duration(text: str) -> float:
    """Seconds in ``text``; ``math.inf`` for ``forever``.

    Raises ValueError, with a text that says what was found and what was expected. A number without a
    unit is refused: ten of what?
    """
    stripped = text.strip()
    if stripped == "forever":
        return math.inf
    digits = stripped.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = stripped[len(digits) :]
    if unit not in _SECONDS or not _is_decimal(digits):
        hint = f" (did you mean {stripped}s?)" if _is_decimal(stripped) else ""
        raise ValueError(f"found {text!r}, expected {EXPECTED}{hint}")
    return float(digits) * _SECONDS[unit]


def _is_decimal(text: str) -> bool:
    """Digits with at most one point: no sign, no exponent, no ``inf``, no ``nan``, ASCII only."""
    whole, _, fraction = text.partition(".")
    return (
        whole.isascii()
        and whole.isdigit()
        and ("." not in text or (fraction.isascii() and fraction.isdigit()))
    )
