"""Jobs on disk: private or refused, and never a live one taken for dead."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from jlaunch.core.errors import ConfigError
from jlaunch.io import jobs
from jlaunch.io.jobs import HostDirectory, JobDirectory, JobRecord


def record(job: str) -> JobRecord:
    return JobRecord(
        version=1,
        job=job,
        pid=os.getpid(),
        started_at=1.0,
        command=("train.py",),
        cwd="/",
        world_size=4,
        backend="jaccl",
        policy="raise",
    )


@pytest.fixture
def base() -> Iterator[str]:
    # Sockets need short paths; pytest's own are long.
    with tempfile.TemporaryDirectory(prefix="jl-") as path:
        yield path


def test_directories_are_private(base: str) -> None:
    job = JobDirectory.create(record("a"), base)
    host = HostDirectory.create(job.path, 0)
    for path in (os.path.dirname(job.path), job.path, host.path):
        assert os.stat(path).st_mode & 0o777 == 0o700
    assert os.stat(os.path.join(job.path, "job.json")).st_mode & 0o777 == 0o600


def test_a_job_is_live_while_its_supervisor_holds_the_record(base: str) -> None:
    job = JobDirectory.create(record("a"), base)
    (entry,) = jobs.live_jobs(base)
    assert (entry.path, entry.record) == (job.path, record("a"))
    job.release()
    assert jobs.live_jobs(base) == []
    assert not os.path.exists(job.path)


def test_a_dead_supervisors_entry_is_stale_and_removed(base: str) -> None:
    code = f"""
import os, sys
sys.path.insert(0, {os.getcwd()!r})
from jlaunch.io.jobs import JobDirectory, JobRecord
JobDirectory.create(JobRecord(version=1, job="dead", pid=os.getpid(), started_at=0.0, command=("x",), cwd="/",
                              world_size=1, backend="jaccl", policy="raise"), {base!r})
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    alive = JobDirectory.create(record("alive"), base)
    assert [entry.record.job for entry in jobs.live_jobs(base)] == ["alive"]
    assert [os.path.basename(path) for path in jobs.remove_stale(base)] == ["dead"]
    assert os.listdir(os.path.dirname(alive.path)) == ["alive"]


def test_an_entry_whose_agent_still_cleans_up_is_not_stale(base: str) -> None:
    job = JobDirectory.create(record("a"), base)
    host = HostDirectory.create(job.path, 0)
    os.close(job._record_fd)  # the supervisor is gone
    assert jobs.live_jobs(base) == []
    assert jobs.remove_stale(base) == []
    host.remove()
    assert not os.path.exists(job.path), "the last one out removes the job's directory"


def test_the_agent_leaves_a_live_supervisors_directory_alone(base: str) -> None:
    job = JobDirectory.create(record("a"), base)
    HostDirectory.create(job.path, 0).remove()
    assert os.path.exists(os.path.join(job.path, "job.json"))


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_directory_open_to_others_is_refused(base: str, mode: int) -> None:
    user_dir = os.path.join(base, f"jlaunch-{os.getuid()}")
    os.mkdir(user_dir)
    os.chmod(user_dir, mode)
    with pytest.raises(ConfigError, match=f"mode is {mode:04o}, expected 0700"):
        JobDirectory.create(record("a"), base)


def test_a_link_in_the_place_of_the_directory_is_refused(base: str, tmp_path: Path) -> None:
    os.symlink(tmp_path, os.path.join(base, f"jlaunch-{os.getuid()}"))
    with pytest.raises(ConfigError, match="expected a directory of our own"):
        JobDirectory.create(record("a"), base)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_of_another_user_is_refused(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    user_dir = os.path.join(base, "jlaunch-12345")
    os.mkdir(user_dir, 0o700)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    if os.stat(user_dir).st_uid == 12345:
        pytest.fail("the test must not run as user 12345")
    with pytest.raises(ConfigError, match="expected 12345"):
        JobDirectory.create(record("a"), base)


def test_a_base_too_deep_for_sockets_is_refused_by_name(base: str) -> None:
    deep = os.path.join(base, "d" * 80)
    os.mkdir(deep)
    with pytest.raises(ConfigError, match="JLAUNCH_RUNTIME_DIR"):
        JobDirectory.create(record("a"), deep)


def test_a_base_that_does_not_exist_is_refused_by_name(base: str) -> None:
    with pytest.raises(ConfigError, match="JLAUNCH_RUNTIME_DIR"):
        JobDirectory.create(record("a"), os.path.join(base, "missing"))


def test_two_jobs_cannot_have_one_directory(base: str) -> None:
    JobDirectory.create(record("a"), base)
    with pytest.raises(ConfigError, match="cannot make the job's directory"):
        JobDirectory.create(record("a"), base)
