"""A rank that is busy elsewhere between two collectives. argv: LATE_RANK SLEEP_S. Lines as in sum_loop.py."""

from __future__ import annotations

import json
import os
import sys
import time

import mlx.core as mx

import jlaunch

LATE_RANK, SLEEP_S = int(sys.argv[1]), float(sys.argv[2])


def say(kind: str, **fields: object) -> None:
    """One JSON line."""
    print(json.dumps({"kind": kind, "rank": int(os.environ["JLAUNCH_RANK"]), **fields}), flush=True)


group = mx.distributed.init(strict=True)
try:
    mx.eval(mx.distributed.all_sum(mx.ones((1024,))))
    say("up", pid=os.getpid())
    if group.rank() == LATE_RANK:
        time.sleep(SLEEP_S)  # the program's own work: the thing under test, not a synchronisation
    total = mx.distributed.all_sum(mx.array(1.0)).item()
    say("done", total=total)
except jlaunch.PeerLost as error:
    say("lost", ranks=list(error.ranks), reasons=dict(error.reasons))
