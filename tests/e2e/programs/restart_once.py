"""Rank 2 kills itself in the first epoch, in the middle of a run of 16 MB sums. argv: SIZE_BYTES."""

from __future__ import annotations

import json
import os
import signal
import sys

import mlx.core as mx

import jlaunch

SIZE = int(sys.argv[1])


def say(kind: str, **fields: object) -> None:
    """One JSON line, with the epoch."""
    rank = int(os.environ["JLAUNCH_RANK"])
    print(json.dumps({"kind": kind, "rank": rank, "epoch": jlaunch.epoch(), **fields}), flush=True)


try:
    group = mx.distributed.init(strict=True)
    x = mx.ones((SIZE // 4,))
    for turn in range(6):
        mx.eval(mx.distributed.all_sum(x))
        if turn == 3 and jlaunch.epoch() == 1 and group.rank() == 2:
            os.kill(os.getpid(), signal.SIGKILL)
    say("done", restart_count=jlaunch.restart_count())
finally:
    say("finally")
