"""``jlaunch status``: a snapshot on one screen."""

from __future__ import annotations

from jlaunch.core.snapshot import Happening, HostView, RankView, Snapshot, WaitView
from jlaunch.view.status import render_jobs, render_status

WAIT = WaitView(collective="all_sum", seq=41, size_bytes=16 * 2**20, waiting_for=(2,), waited_s=3.2)


def rank(number: int, state: str = "waiting", **fields: object) -> RankView:
    """A view of one rank."""
    defaults: dict[str, object] = {"host": 0, "age_s": 3.2, "pid": 1000 + number}
    return RankView(rank=number, state=state, **{**defaults, **fields})  # type: ignore[arg-type]


def snapshot(*ranks: RankView, **fields: object) -> Snapshot:
    """A snapshot of a job on one host."""
    defaults: dict[str, object] = {
        "job": "3f2a9c01b2d4",
        "policy": "wait",
        "epoch": 0,
        "phase": "running",
        "age_s": 133.0,
        "restarts": 0,
        "max_restarts": 3,
        "hosts": (HostView(host=0, name="127.0.0.1", state="ready", heard_s=0.2),),
    }
    return Snapshot(ranks=ranks, **{**defaults, **fields})  # type: ignore[arg-type]


def test_a_paused_rank_and_who_waits_for_it() -> None:
    shown = render_status(
        snapshot(
            rank(0, wait=WAIT),
            rank(1, wait=WAIT),
            rank(2, "paused", age_s=3.1),
            rank(3, wait=WAIT),
            happenings=(Happening(ago_s=3.1, text="rank 2 was paused"),),
        )
    )
    assert shown == (
        "job 3f2a9c01b2d4  running  for 2m 13s  epoch 0  policy wait\n"
        "host 0  127.0.0.1  ready  heard 0.2s ago\n"
        "\n"
        "rank  host  state    for   pid   what\n"
        "0     0     waiting  3.2s  1000  all_sum #41, 16.0 MiB, waits for 2\n"
        "1     0     waiting  3.2s  1001  all_sum #41, 16.0 MiB, waits for 2\n"
        "2     0     paused   3.1s  1002\n"
        "3     0     waiting  3.2s  1003  all_sum #41, 16.0 MiB, waits for 2\n"
        "\n"
        "recent\n"
        "  3.1s ago  rank 2 was paused\n"
    )


def test_a_lost_rank_says_how_it_ended() -> None:
    shown = render_status(
        snapshot(
            rank(0, "running", report={"step": 120.0, "loss": 2.5}),
            rank(1, "lost", status=-9, reason="killed"),
            rank(2, "exited", status=0),
            rank(3, "lost", reason="host_lost", pid=None),
            exit_code=137,
            cause="rank 1 (127.0.0.1) was killed by SIGKILL",
            policy="restart",
        ),
        columns=100,
    )
    assert "restarts 0 of 3" in shown
    assert "exit code 137" in shown
    assert "cause: rank 1 (127.0.0.1) was killed by SIGKILL\n" in shown
    assert "step=120 loss=2.5\n" in shown
    assert "signal 9 (killed)\n" in shown
    assert "exit code 0\n" in shown
    assert "host_lost\n" in shown


def test_many_ranks_share_lines_so_that_one_screen_is_enough() -> None:
    many = [rank(number, wait=WAIT) for number in range(300) if number != 2]
    shown = render_status(snapshot(*many, rank(2, "paused")), lines=24)
    assert len(shown.splitlines()) <= 24
    assert "\n0-1,3-299  0     waiting" in shown
    assert "\n2          0     paused" in shown


def test_narrow_terminals_cut_lines_and_say_so() -> None:
    shown = render_status(snapshot(rank(0, wait=WAIT)), columns=40)
    assert all(len(line) <= 40 for line in shown.splitlines())
    assert "…" in shown


def test_several_jobs_are_listed() -> None:
    shown = render_jobs([("aa11", 12, 4, "5.0s", "train.py"), ("bb22", 13456, 64, "2h 03m", "sh -c 'x y'")])
    assert shown == (
        "job   pid    ranks  for     command\n"
        "aa11  12     4      5.0s    train.py\n"
        "bb22  13456  64     2h 03m  sh -c 'x y'\n"
    )
