"""A running job as another terminal sees it, and who may see it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.harness import Job
from tests.e2e.test_ends import ENDLESS, pid_of, wait_up

pytestmark = pytest.mark.e2e


def test_status_of_a_running_job() -> None:
    with Job(*ENDLESS, ranks=2) as job:
        wait_up(job, 2)
        env = {**os.environ, "JLAUNCH_RUNTIME_DIR": str(job.runtime_dir)}
        command = [sys.executable, "-m", "jlaunch", "status", "--json"]
        found = json.loads(subprocess.run(command, env=env, check=True, capture_output=True).stdout)
        assert found["job"] == job.token()
        assert [rank["pid"] for rank in found["ranks"]] == [pid_of(job, rank) for rank in range(2)]
        job.process.send_signal(signal.SIGINT)
        assert job.end() == 130
        after = subprocess.run(command, env=env, check=False, capture_output=True)
        assert (after.returncode, after.stdout.strip()) == (1, b"[]")


def test_the_job_is_private() -> None:
    with Job(*ENDLESS, ranks=1) as job:
        wait_up(job, 1)
        below = [path for path in job.runtime_dir.rglob("*") if path.is_dir()]
        assert len(below) >= 3
        assert {path.stat().st_mode & 0o777 for path in below} == {0o700}
        secrets = [
            Path(f"/proc/{pid}/{what}").read_bytes()
            for pid in job.processes()
            for what in ("cmdline", "environ")
        ]
        assert not any(re.search(rb"(?i)curve|secret_key", text) for text in secrets)
        job.process.send_signal(signal.SIGINT)
        job.end()
