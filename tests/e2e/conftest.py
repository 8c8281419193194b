"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def burners() -> Iterator[Callable[[int], None]]:
    """Start that many processes that use a core each; ended with the test."""
    running: list[subprocess.Popen[bytes]] = []

    def start(count: int) -> None:
        for _ in range(count):
            running.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))

    yield start
    for process in running:
        process.kill()
        process.wait()
