"""``jlaunch replay``: a recorded run decides as it did; a log that was changed does not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.harness import Job, program

pytestmark = pytest.mark.e2e


def replayed(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "jlaunch", "replay", str(path)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def write_log(job: Job, path: Path) -> list[dict[str, object]]:
    job.wait_event("EndJob")
    path.write_bytes(b"".join(line + b"\n" for line in job.events_lines.all))
    return job.events


def test_a_pause_a_loss_and_a_restart_are_decided_alike(tmp_path: Path) -> None:
    options = ("--on-peer-loss", "restart", "--deadline", "300ms", "--max-pause", "20s", "--grace", "5s")
    with Job(*program("sum_loop.py", 10**9, 4096), ranks=3, options=options) as job:
        job.wait_said("up", 3)
        first = {line["rank"]: line["pid"] for line in job.said("up")}
        os.kill(first[1], signal.SIGSTOP)
        job.wait_event("RecordVerdict", verdict_kind="keep_waiting")
        os.kill(first[1], signal.SIGCONT)
        job.wait_event("RankResumed", rank=1)
        os.kill(first[2], signal.SIGKILL)
        job.wait_said("up", 6)
        job.process.send_signal(signal.SIGTERM)
        assert job.end() == 143, job.describe()
        lines = write_log(job, tmp_path / "log")
    found = replayed(tmp_path / "log")
    assert found.returncode == 0, found.stdout + found.stderr
    decisions = [line for line in lines if line["kind"] in ("RecordVerdict", "EndJob")]
    assert found.stdout.splitlines()[-1] == f"the same {len(decisions)} decisions"
    assert "keep waiting to" in found.stdout
    assert "end with code 143: stopped by SIGTERM" in found.stdout


def test_a_log_that_was_changed_is_found_out(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Job(*program("faulty.py", "exit-3", "catch"), ranks=3) as job:
        assert job.end() == 3, job.describe()
        lines = write_log(job, log)
    assert replayed(log).returncode == 0
    for line in lines:
        if line["kind"] in ("RankDied", "RankExited") and line["rank"] == 1:
            line["status"] = 4
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = replayed(log)
    assert found.returncode == 1
    assert "differs" in found.stdout
    assert "recorded: " in found.stdout


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "found no line"),
        ("{nonsense", "line 1: found no JSON object"),
        ('{"kind":"RankPaused","t":1}', "found a line of kind 'RankPaused' where the job begins"),
        ('{"kind":"JobStarted","t":1,"seed":1,"spec":{}}', "found a JobSpec that is none"),
    ],
)
def test_what_is_no_log_is_refused(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "log").write_text(content)
    found = replayed(tmp_path / "log")
    assert found.returncode == 2
    assert words in found.stderr
    assert found.stderr.count("\n") == 1
