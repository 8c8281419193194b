"""The command line, called in this process, with a supervisor that only notes what it was given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jlaunch.cli.main import main
from jlaunch.core.spec import JobSpec


class Supervisor:
    """Stands in for ``jlaunch.runtime.supervisor``: keeps the jobs it was asked to run."""

    def __init__(self) -> None:
        self.jobs: list[JobSpec] = []
        self.python: str | None = None
        self.events: str | None = None
        self.code = 0

    def run(self, spec: JobSpec, *, python: str | None = None, events: str | None = None) -> int:
        """Note the job, and end it with ``code``."""
        self.jobs.append(spec)
        self.python = python
        self.events = events
        return self.code


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    """The stand-in, in the real one's place."""
    stand_in = Supervisor()
    monkeypatch.setattr("jlaunch.runtime.supervisor.run", stand_in.run)
    return stand_in


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with a program in it."""
    (tmp_path / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def parse(supervisor: Supervisor, here: Path) -> Callable[..., JobSpec]:
    """Run the command line and return the job that it made."""

    def parse_arguments(*arguments: str) -> JobSpec:
        assert main(arguments) == 0
        return supervisor.jobs.pop()

    return parse_arguments


@pytest.fixture
def refused(supervisor: Supervisor, here: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run the command line, see it refused (exit 2, one line, nothing started), and return the line."""

    def refuse_arguments(*arguments: str) -> str:
        assert main(arguments) == 2
        out, err = capfd.readouterr()
        assert out == ""
        assert supervisor.jobs == []
        assert err.startswith("jlaunch: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1, f"more than one line: {err!r}"
        return err.removeprefix("jlaunch: ").rstrip("\n")

    return refuse_arguments
