"""``jlaunch status``: which job it shows, and its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from jlaunch.cli.main import main
from jlaunch.core.errors import JlaunchError
from jlaunch.core.snapshot import HostView, Snapshot
from jlaunch.io.jobs import JobDirectory, JobRecord


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A registry of our own, and a supervisor that answers at once."""
    monkeypatch.setenv("JLAUNCH_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("jlaunch.cli.status.ask_status", answer)
    return tmp_path


def answer(job_dir: str) -> dict[str, object]:
    """What the supervisor of ``job_dir`` would say."""
    if Path(job_dir).name.startswith("mute"):
        raise JlaunchError("its supervisor does not answer")
    host = HostView(host=0, name="127.0.0.1", state="ready", heard_s=0.1)
    snapshot = Snapshot(
        job=Path(job_dir).name, policy="raise", epoch=0, phase="running", age_s=1.0, restarts=0,
        max_restarts=3, hosts=(host,), ranks=(),
    )  # fmt: skip
    found = msgspec.to_builtins(snapshot)
    assert isinstance(found, dict)
    return found


def start(job: str) -> JobDirectory:
    """A live job, as far as the registry can see."""
    record = JobRecord(
        version=1, job=job, pid=7, started_at=0.0, command=("train.py", "a b"), cwd="/", world_size=4,
        backend="jaccl", policy="raise",
    )  # fmt: skip
    return JobDirectory.create(record)


def test_no_job(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 1
    assert capfd.readouterr().err == "jlaunch: no job is running\n"
    assert main(["status", "--json"]) == 1
    assert capfd.readouterr().out == "[]\n"


def test_the_only_job_is_meant(capfd: pytest.CaptureFixture[str]) -> None:
    job = start("aa11")
    assert main(["status"]) == 0
    assert capfd.readouterr().out.startswith("job aa11  running")
    assert main(["status", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["job"] == "aa11"
    job.release()


def test_several_jobs_are_listed_and_one_is_chosen_by_the_beginning_of_its_id(
    capfd: pytest.CaptureFixture[str],
) -> None:
    jobs = [start("aa11"), start("ab22")]
    assert main(["status"]) == 0
    shown = capfd.readouterr().out
    assert shown.splitlines()[0].split() == ["job", "pid", "ranks", "for", "command"]
    assert "aa11" in shown
    assert "train.py 'a b'" in shown
    assert main(["status", "--json"]) == 0
    assert [job["job"] for job in json.loads(capfd.readouterr().out)] == ["aa11", "ab22"]
    assert main(["status", "ab"]) == 0
    assert capfd.readouterr().out.startswith("job ab22  running")
    assert main(["status", "zz"]) == 1
    assert capfd.readouterr().err == "jlaunch: no job that begins with 'zz' is running\n"
    for job in jobs:
        job.release()


def test_a_supervisor_that_does_not_answer(capfd: pytest.CaptureFixture[str]) -> None:
    job = start("mute1")
    assert main(["status"]) == 1
    assert capfd.readouterr().err == "jlaunch: job mute1: its supervisor does not answer\n"
    job.release()
