"""The main job: four ranks, a 16 MB ``all_sum``, one peer paused or killed, each policy.

Named after what a user is promised; each was seen to fail with its code broken.
"""

from __future__ import annotations

import os
import signal

import pytest

from tests.e2e.harness import MIB, Job, program, wait_gone

pytestmark = pytest.mark.e2e

DEADLINE = ("--deadline", "1s")
ENDLESS = 1_000_000


def pid_of(job: Job, rank: int) -> int:
    """Pid of the rank, once all four ranks are in their loop."""
    return next(int(line["pid"]) for line in job.wait_said("up", 4) if line["rank"] == rank)


def digests(job: Job) -> set[str]:
    """What the four ranks computed."""
    return {str(line["digest"]) for line in job.said("done")}


def test_wait_a_pause_changes_nothing() -> None:
    """Ten seconds of SIGSTOP under ``wait``: seen at once, waited out, same bits, nobody killed."""
    turns = 60
    with Job(*program("sum_loop.py", turns, 16 * MIB)) as job:
        assert job.end() == 0, job.describe()
        undisturbed = digests(job)
    assert len(undisturbed) == 1

    with Job(*program("sum_loop.py", turns, 16 * MIB), options=("--on-peer-loss", "wait", *DEADLINE)) as job:
        pid = pid_of(job, 2)
        stopped_at = job.events[-1]["at"]
        os.kill(pid, signal.SIGSTOP)
        paused = job.wait_event("RankPaused", rank=2, timeout_s=10)
        assert paused["at"] - stopped_at < 5
        # A question a second and survivor: the tenth answer of one rank means ten seconds of pause.
        job.wait_events("RecordVerdict", 27, verdict_kind="keep_waiting")
        os.kill(pid, signal.SIGCONT)
        job.wait_event("RankResumed", rank=2)
        assert job.end() == 0, job.describe()
        assert digests(job) == undisturbed
        assert {event["epoch"] for event in job.events if "epoch" in event} == {1}
        waits = job.said("waited")
        assert {line["rank"] for line in waits} >= {0, 1, 3}
        for line in waits:
            if line["rank"] != 2:
                assert line["cpu_s"] / line["span_s"] <= 0.02, line
        job.assert_nothing_left()


def warnings_of_pauses(job: Job) -> list[str]:
    """What people are told of pauses, in order."""
    lines = [line.decode() for line in job.stderr.all]
    return [line for line in lines if "is paused" in line or "runs again" in line]


def test_raise_waits_out_a_pause_within_the_limit_with_one_warning() -> None:
    """Under ``raise`` with a limit over the pause: all go on, sums right, one line names rank 2."""
    options = (*DEADLINE, "--max-pause", "5m")
    turns = 40
    with Job(*program("sum_loop.py", turns, 16 * MIB), options=options) as job:
        pid = pid_of(job, 2)
        os.kill(pid, signal.SIGSTOP)
        job.wait_event("RankPaused", rank=2)
        # Three survivors ask once a second: each of them for some seconds.
        job.wait_events("RecordVerdict", 12, verdict_kind="keep_waiting")
        os.kill(pid, signal.SIGCONT)
        job.wait_event("RankResumed", rank=2)
        assert job.end() == 0, job.describe()
        assert len(job.said("done")) == 4
        assert len(digests(job)) == 1
        told = warnings_of_pauses(job)
        assert [line.split(" on ")[0] for line in told] == ["jlaunch: rank 2"] * 2, told
        assert ["paused" in line for line in told] == [True, False]
        assert not job.said("lost")
        job.assert_nothing_left()


def test_raise_names_a_killed_peer() -> None:
    """SIGKILL under ``raise``: PeerLost in all three, with rank and reason; exit 137."""
    with Job(*program("sum_loop.py", ENDLESS, 16 * MIB), options=DEADLINE) as job:
        os.kill(pid_of(job, 2), signal.SIGKILL)
        lost = job.wait_said("lost", 3)
        assert {line["rank"] for line in lost} == {0, 1, 3}
        for line in lost:
            assert line["ranks"] == [2]
            assert line["reasons"] == {"2": "killed"}
            assert line["collective"] == "all_sum"
            assert line["epoch"] == 1
        assert job.end() == 137, job.describe()
        assert b"rank 2" in b"\n".join(job.stderr.all)
        job.assert_nothing_left()


def test_raise_names_a_peer_paused_past_the_limit() -> None:
    """SIGSTOP under ``raise``: PeerLost with ``paused`` after --max-pause; the paused rank itself is ended."""
    options = (*DEADLINE, "--max-pause", "3s", "--grace", "2s")
    with Job(*program("sum_loop.py", ENDLESS, 16 * MIB), options=options) as job:
        pid = pid_of(job, 2)
        os.kill(pid, signal.SIGSTOP)
        paused = job.wait_event("RankPaused", rank=2)
        lost = job.wait_said("lost", 3)
        for line in lost:
            assert line["reasons"] == {"2": "paused"}
        wait_gone(pid, 10)
        verdict = job.wait_event("RecordVerdict", verdict_kind="raise")
        assert verdict["at"] - paused["at"] >= 2.9
        assert job.end() == 75, job.describe()
        job.assert_nothing_left()


def test_restart_starts_all_ranks_again() -> None:
    """SIGKILL under ``restart``: the old ranks are confirmed gone, then epoch 2 runs to its end."""
    options = ("--on-peer-loss", "restart", *DEADLINE)
    with Job(*program("restart_once.py", 16 * MIB), options=options) as job:
        assert job.end() == 0, job.describe()
        done = job.said("done")
        assert {(line["epoch"], line["restart_count"]) for line in done} == {(2, 1)}
        assert len(done) == 4
        gone = [event["at"] for event in job.of_kind("RankExited", epoch=1)]
        again = [event["at"] for event in job.of_kind("RankSpawned", epoch=2)]
        assert len(gone) == len(again) == 4
        assert max(gone) <= min(again)
        assert {line["rank"] for line in job.said("finally") if line["epoch"] == 1} == {0, 1, 3}
        job.assert_nothing_left()


def test_stop_ends_survivors_cleanly() -> None:
    """SIGKILL under ``stop``: JobStopping, ``finally`` and ``atexit`` in all survivors; exit 137."""
    options = ("--on-peer-loss", "stop", *DEADLINE)
    with Job(*program("sum_loop.py", ENDLESS, 16 * MIB), options=options) as job:
        os.kill(pid_of(job, 2), signal.SIGKILL)
        assert job.end() == 137, job.describe()
        for kind in ("stopping", "finally", "atexit"):
            assert {line["rank"] for line in job.said(kind)} == {0, 1, 3}, (kind, job.describe())
        assert not job.said("lost")
        job.assert_nothing_left()


@pytest.mark.parametrize("loaded", [False, True], ids=["quiet", "loaded"])
def test_late_is_not_lost(loaded: bool, request: pytest.FixtureRequest) -> None:
    """A rank that works ten times the deadline outside any collective is asked about, and kept."""
    if loaded:
        request.getfixturevalue("burners")(os.cpu_count() or 1)
    with Job(*program("late.py", 2, 10), options=DEADLINE) as job:
        job.wait_said("up", 4)
        assert job.end() == 0, job.describe()
        assert len(job.said("done")) == 4
        assert not job.said("lost")
        questions = job.of_kind("DeadlineAsked")
        answers = job.of_kind("RecordVerdict", verdict_kind="keep_waiting")
        assert len(questions) >= 5
        assert {2} == {rank for question in questions for rank in question["wait"]["waiting_for"]}
        assert all("rank 2" in answer["why"] for answer in answers)
        asked = {(question["rank"], question["question"]) for question in questions}
        assert len(answers) >= len(asked) - 3


@pytest.mark.parametrize("loaded", [False, True], ids=["quiet", "loaded"])
def test_late_twin_that_is_killed_is_lost(loaded: bool, request: pytest.FixtureRequest) -> None:
    """The same configuration, the same late rank, but killed: it is lost at once."""
    if loaded:
        request.getfixturevalue("burners")(os.cpu_count() or 1)
    with Job(*program("late.py", 2, 10), options=DEADLINE) as job:
        pid = next(int(line["pid"]) for line in job.wait_said("up", 4) if line["rank"] == 2)
        job.wait_event("DeadlineAsked")
        os.kill(pid, signal.SIGKILL)
        lost = job.wait_said("lost", 3)
        assert all(line["reasons"] == {"2": "killed"} for line in lost)
        assert job.end() == 137, job.describe()
        job.assert_nothing_left()
