"""The state for people."""

from __future__ import annotations

import json
import math

import msgspec
import pytest

from jlaunch.core.events import (
    DesyncFound,
    HeartbeatArrived,
    RankDied,
    RankPaused,
    RankReported,
    RankUnkillable,
)
from jlaunch.core.snapshot import SCHEMA, RankView, Snapshot, decode_snapshot, encode_snapshot
from jlaunch.core.spec import Policy
from tests.core.driving import Driven, job_spec, wait_for


def ranks(job: Driven) -> dict[int, RankView]:
    return {view.rank: view for view in job.machine.snapshot(job.now).ranks}


def test_a_job_from_its_first_moment() -> None:
    job = Driven(job_spec(Policy.WAIT, hosts=2, per_host=1))
    job.start()
    job.now += 2.0
    snapshot = job.machine.snapshot(job.now)
    assert (snapshot.schema, snapshot.job, snapshot.policy, snapshot.epoch) == (SCHEMA, "test", "wait", 1)
    assert (snapshot.phase, snapshot.age_s, snapshot.restarts, snapshot.max_restarts) == (
        "forming",
        2.0,
        0,
        3,
    )
    assert [(host.name, host.state, host.heard_s, host.agent_pid) for host in snapshot.hosts] == [
        ("h0", "ready", 2.0, 10),
        ("h1", "ready", 2.0, 11),
    ]
    assert [(rank.state, rank.age_s) for rank in snapshot.ranks] == [("starting", 2.0)] * 2


def test_a_host_that_was_never_heard() -> None:
    job = Driven()
    assert job.machine.snapshot(job.now).hosts[0].heard_s is None
    assert job.machine.snapshot(job.now).hosts[0].state == "connecting"


def test_the_phase_while_a_group_forms() -> None:
    job = Driven().start()
    assert job.machine.snapshot(job.now).phase == "forming"
    job.spawn()
    assert job.machine.snapshot(job.now).phase == "running"
    job.claim(0)
    assert job.machine.snapshot(job.now).phase == "forming"


def test_the_states_of_a_rank() -> None:
    job = Driven(job_spec(per_host=8)).run()
    job.now += 1.0
    job.hear(HeartbeatArrived(host=0, beat=1, waits={1: wait_for(2, 3, waited_s=0.5)}), 0)
    job.hear(RankPaused(rank=2, epoch=1))
    job.ask(4, 3)
    job.look(3)
    job.die(5, 0)
    job.end(6, 0)
    job.hear(DesyncFound(rank=7, epoch=1, peer=99, here="a", there="b"))
    job.now += 2.0
    views = ranks(job)
    assert {rank: view.state for rank, view in views.items()} == {
        0: "running",
        1: "waiting",
        2: "paused",
        3: "late",
        4: "waiting",
        5: "exited",
        6: "exited",
        7: "lost",
    }
    wait = views[1].wait
    assert wait is not None
    assert (wait.collective, wait.seq, wait.waiting_for, wait.waited_s) == ("all_sum", 5, (2, 3), 2.5)
    assert views[1].age_s == 2.5
    assert (views[2].age_s, views[3].age_s) == (2.0, 2.0)
    assert (views[7].reason, views[7].age_s) == ("desync", 2.0)
    assert (views[6].status, views[6].reason) == (0, None)


def test_ranks_that_are_being_ended_or_were_lost_with_their_host() -> None:
    job = Driven(job_spec(hosts=2, per_host=1)).run()
    job.agent_ends(1)
    assert (ranks(job)[1].state, ranks(job)[1].reason) == ("lost", "control_lost")
    job.stop()
    assert ranks(job)[0].state == "stopping"
    job.hear(RankUnkillable(rank=0, epoch=1, pid=1))
    assert ranks(job)[0].state == "stopping"


def test_a_stop_of_a_silent_host_leaves_exited_ranks() -> None:
    job = Driven(job_spec(hosts=2, per_host=1)).run()
    job.stop()
    job.agent_ends(1)
    assert (ranks(job)[1].state, ranks(job)[1].reason) == ("exited", None)


def test_reports_and_the_past() -> None:
    job = Driven().run()
    job.hear(RankReported(rank=1, epoch=1, numbers={"step": 7.0}))
    job.die(2, -9)
    job.now += 3.0
    snapshot = job.machine.snapshot(job.now)
    assert snapshot.ranks[1].report == {"step": 7.0}
    assert snapshot.happenings[-1].ago_s == 3.0
    assert snapshot.happenings[-1].text == "rank 2 on h0 was killed by SIGKILL (signal 9)"


def test_the_end_is_in_it() -> None:
    job = Driven().run()
    job.hear(RankDied(rank=0, epoch=1, status=3, completed_seq=0))
    for rank in range(3):
        job.vanish(rank, 3)
    snapshot = job.machine.snapshot(job.now)
    assert (snapshot.phase, snapshot.exit_code, snapshot.cause) == (
        "failed",
        3,
        "rank 0 on h0 exited with code 3",
    )


def test_it_travels_as_json() -> None:
    job = Driven().run()
    job.hear(RankReported(rank=1, epoch=1, numbers={"loss": math.nan}))
    snapshot = job.machine.snapshot(job.now)
    data = encode_snapshot(snapshot)
    assert json.loads(data)["ranks"][1]["report"] == {"loss": None}
    fine = msgspec.structs.replace(snapshot, ranks=snapshot.ranks[:1])
    assert decode_snapshot(encode_snapshot(fine)) == fine
    assert isinstance(fine, Snapshot)
    with pytest.raises(msgspec.MsgspecError):
        decode_snapshot(b"{}")
