"""Spans, sizes and lists of ranks as people read them."""

from __future__ import annotations

import math
from collections.abc import Iterable


def span(seconds: float) -> str:
    """A span in two units at most: ``0.2s``, ``13s``, ``2m 13s``, ``1h 02m``, ``forever``."""
    if seconds == math.inf:
        return "forever"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"


def size(size_bytes: int) -> str:
    """A size in binary units: ``4 B``, ``1.0 KiB``, ``16.0 MiB``."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    value, unit = size_bytes / 1024, "KiB"
    for larger in ("MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.1f} {unit}"


def ranks(numbers: Iterable[int]) -> str:
    """Rank numbers, neighbours joined: ``0-3,7``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def fitted(line: str, width: int) -> str:
    """``line`` cut to ``width`` columns, the cut marked."""
    return line if len(line) <= width else line[: max(width - 1, 0)] + "…"
