"""``init`` inside a rank: how it ends when the group does not form, and how the rank leaves."""

from __future__ import annotations

import signal
import sys

import pytest

from jlaunch import backend
from jlaunch.core.contract import Phase, Reason
from jlaunch.core.messages import InitFailed, Join, Report
from tests.backend.harness import StandIn

INIT = """
import json, sys
import mlx.core as mx
import jlaunch
def say(**words): print(json.dumps(words), flush=True)
try:
    mx.distributed.init()
except BaseException as error:
    say(error=type(error).__name__, text=str(error), reasons=getattr(error, "reasons", None))
    try:
        mx.distributed.all_sum(mx.array(1))
    except BaseException as again:
        say(again=type(again).__name__)
    raise
"""


def test_refused_because_ranks_are_lost() -> None:
    with StandIn(INIT, forms=False) as ranks:
        ranks.heard(Join, 0)
        ranks.heard(Join, 1)
        ranks.refuse("rank 1 exited before init", {1: Reason.EXITED})
        assert ranks.said(0, "error") == "PeerLost"
        assert ranks.said(0, "reasons") == {"1": "exited"}
        assert "rank 1 exited before init" in ranks.said(0, "text")
        assert ranks.said(0, "again") == "PeerLost"
        assert ranks.wait(0) == 1


def test_refused_for_another_cause() -> None:
    with StandIn(INIT, forms=False) as ranks:
        ranks.heard(Join, 0)
        ranks.refuse("not all ranks came within 5m")
        assert ranks.said(0, "error") == "RuntimeError"
        assert "not all ranks came within 5m" in ranks.said(0, "text")
        assert ranks.wait(0) == 1


@pytest.mark.parametrize(
    ("number", "error"),
    [(signal.SIGTERM, "JobStopping"), (signal.SIGINT, "KeyboardInterrupt")],
    ids=["TERM", "INT"],
)
def test_signals_end_the_wait(number: signal.Signals, error: str) -> None:
    with StandIn(INIT, forms=False) as ranks:
        ranks.heard(Join, 0)
        ranks.ranks[0].send_signal(number)
        assert ranks.said(0, "error") == error
        assert ranks.wait(0) != 0
        assert not ranks.view(0).owner_alive


def test_failure_of_a_rank_is_told_with_its_cause() -> None:
    with StandIn(INIT, forms=False, env={"JLAUNCH_SOFT_DIR": "/nonexistent"}) as ranks:
        told = ranks.heard(InitFailed, 0)
        assert told.error.startswith("VerbsError: ")
        assert ranks.said(0, "error") == "VerbsError"
        assert ranks.said(0, "text") in told.error
        assert ranks.wait(0) == 1


def test_damaged_matrix_of_devices_is_told() -> None:
    with StandIn(INIT, forms=False, env={"MLX_IBV_DEVICES": "/nonexistent/devices.json"}) as ranks:
        told = ranks.heard(InitFailed, 0)
        assert "/nonexistent/devices.json" in told.error
        assert ranks.said(0, "error") == "RuntimeError"


def test_another_version_of_mlx_is_one_clear_error() -> None:
    with pytest.raises(ImportError) as caught:
        backend.check_mlx_version("0.99.1", "0.32.4")
    text = str(caught.value)
    assert "0.99.1" in text
    assert f'{sys.executable} -m pip install "mlx' in text
    assert text.endswith('==0.32.4"')
    backend.check_mlx_version("0.32.4", "0.32.4")


def test_rank_with_another_mlx_says_so_and_the_agent_is_told() -> None:
    program = INIT.replace("try:\n", "import jlaunch.backend._build as b; b.MLX_VERSION = '0.1.2'\ntry:\n", 1)
    with StandIn(program, forms=False) as ranks:
        told = ranks.heard(InitFailed, 0)
        assert told.error.startswith("ImportError: jlaunch was built against mlx 0.1.2, but mlx ")
        assert "pip install" in told.error
        assert ranks.said(0, "error") == "ImportError"
        assert ranks.said(0, "again") == "ImportError"
        assert ranks.wait(0) == 1


LEAVE = """
import atexit, json, os, sys, threading
import mlx.core as mx
import jlaunch
def say(**words): print(json.dumps(words), flush=True)
group = mx.distributed.init()
x = mx.ones((1000,))
mx.eval(mx.distributed.all_sum(x))
{rank_0}
"""


@pytest.mark.parametrize(
    ("rank_0", "code"),
    [
        ("", 0),
        ("sys.exit(5)", 5),
        ("os._exit(6)", 6),
        ("raise ValueError('mine')", 1),
        ("y = mx.distributed.all_sum(x); mx.async_eval(y)", 0),
        ("keep = [mx.distributed.all_sum(x) for _ in range(20)]; mx.async_eval(keep)", 0),
        (
            "threading.Thread(target=lambda: mx.eval(mx.distributed.all_sum(mx.ones(9))), daemon=True).start()",
            0,
        ),
        ("atexit.register(lambda: say(atexit=1)); mx.async_eval(mx.distributed.all_sum(x))", 0),
    ],
    ids=["end", "exit", "_exit", "exception", "stuck", "twenty stuck", "stuck in a daemon thread", "atexit"],
)
def test_no_hang_at_exit(rank_0: str, code: int) -> None:
    # Rank 1 takes part in the first collective only: what rank 0 leaves behind can never complete.
    program = LEAVE.replace("{rank_0}", f"if group.rank() == 1: sys.stdin.readline(); sys.exit()\n{rank_0}")
    with StandIn(program) as ranks:
        assert ranks.wait(0) == code
        if code == 6:
            ranks.until_dead(0)
        view = ranks.view(0)
        assert not view.owner_alive
        assert view.phase == (Phase.FORMED if code == 6 else Phase.LEAVING)
        ranks.tell(1)
        assert ranks.wait(1) == 0


def test_atexit_of_the_program_may_still_communicate() -> None:
    program = LEAVE.replace(
        "{rank_0}", "atexit.register(lambda: say(sum=mx.distributed.all_sum(x)[0].item()))"
    )
    with StandIn(program) as ranks:
        assert [ranks.said(rank, "sum") for rank in (0, 1)] == [2, 2]
        assert [ranks.wait(rank) for rank in (0, 1)] == [0, 0]


def test_reports() -> None:
    program = LEAVE.replace(
        "{rank_0}",
        "for step in range(2000): jlaunch.report(step=step, loss=0.5)\nsay(done=1)\nsys.stdin.readline()",
    )
    with StandIn(program, size=1) as ranks:
        ranks.said(0, "done")
        first = ranks.heard(Report, 0)
        assert first.numbers == {"step": 0.0, "loss": 0.5}
        assert ranks.view(0).reports == 2000
        sent = [message.body for message in ranks.messages if isinstance(message.body, Report)]
        assert len(sent) < 200
        ranks.tell(0)
        assert ranks.wait(0) == 0
