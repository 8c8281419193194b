"""Ranks that sum without end, until one of them does what it was told to. Prints JSON lines.

argv: FAULT [catch]. Rank 1 does FAULT before its all_sum number 9, one of those below. ``up`` (pid) comes
after the first sum. With ``catch`` the others catch what is raised in them and end with 0.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading

import mlx.core as mx

import jlaunch

VICTIM, STEP = 1, 9


def say(kind: str, **fields: object) -> None:
    """One JSON line."""
    print(json.dumps({"kind": kind, "rank": int(os.environ["JLAUNCH_RANK"]), **fields}), flush=True)


def wait_for_ever() -> None:
    """Out of every collective, alive, and with nothing to show for it."""
    say("waiting")
    threading.Event().wait()


FAULTS = {
    "none": lambda: None,
    "finish": lambda: os._exit(0),
    "return": lambda: sys.exit(0),
    "exit-3": lambda: sys.exit(3),
    "exit-now-7": lambda: os._exit(7),
    "error": lambda: {}["missing"],
    "segv": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "wait": wait_for_ever,
    "other-call": lambda: mx.eval(mx.distributed.all_max(mx.ones((1000,)))),
    "other-size": lambda: mx.eval(mx.distributed.all_sum(mx.ones((999,)))),
    "other-dtype": lambda: mx.eval(mx.distributed.all_sum(mx.ones((1000,), dtype=mx.int32))),
    "swapped": lambda: (
        mx.async_eval(mx.distributed.all_max(mx.ones((1000,)))),
        mx.async_eval(mx.distributed.all_sum(mx.ones((1000,)))),
    ),
    "skip": lambda: mx.eval(mx.distributed.all_gather(mx.ones((3,)))),
}


def main(fault: str, turns: int) -> None:
    """Loop."""
    group = mx.distributed.init()
    for turn in range(1, turns + 1):
        if turn == STEP and group.rank() == VICTIM:
            FAULTS[fault]()
        mx.eval(mx.distributed.all_sum(mx.ones((1000,))))
        if turn == 1:
            say("up", pid=os.getpid())


if sys.argv[1] == "late" and os.environ["JLAUNCH_RANK"] == str(VICTIM):
    wait_for_ever()
try:
    main(sys.argv[1], 20 if sys.argv[1] == "none" else 10**9)
except jlaunch.PeerLost as loss:
    say("lost", reasons=dict(loss.reasons), text=str(loss))
    if "catch" not in sys.argv:
        raise
