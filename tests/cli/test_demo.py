"""The demo: for real, and what it says when jlaunch does not keep its word."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jlaunch.cli.demo import play
from jlaunch.cli.demo.scenes import Scene, Story, scenes
from jlaunch.cli.demo.stage import SceneFailed, Stage
from jlaunch.cli.main import main

ROOT = Path(__file__).parents[2]
BOUND_S = 240


@pytest.mark.e2e
def test_the_demo_shows_every_policy_and_ends_well(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jlaunch", "demo"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BOUND_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("caught PeerLost") == 3
    assert done.stdout.count("got JobStopping") == 3
    assert "keep waiting" in done.stdout
    assert "started again" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_there_is_a_scene_for_every_policy_that_works() -> None:
    assert [scene.policy for scene in scenes()] == ["raise", "wait", "restart", "stop"]


@pytest.fixture
def handlers() -> Iterator[None]:
    """The signal handlers, as they were before the demo set its own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Broken(Stage):
    """A stage on which nothing ever happens."""

    def __init__(self, *options: str, turns: int) -> None:
        self.options = options

    def __exit__(self, *error: object) -> None:
        """There is nothing to end."""


@pytest.mark.usefixtures("handlers")
def test_a_broken_word_is_said_and_makes_the_demo_fail(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def act(stage: Stage) -> Story:
        raise SceneFailed("PeerLost in every survivor: did not come within 30 s")

    monkeypatch.setattr(play, "Stage", Broken)
    monkeypatch.setattr(play, "scenes", lambda: (Scene("raise", "title", (), 1, act),))
    assert main(["demo"]) == 1
    err = capfd.readouterr().err
    assert "NOT as promised: PeerLost in every survivor: did not come within 30 s" in err
    assert "raise: not as promised" in err
