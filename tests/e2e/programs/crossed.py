"""Ranks whose calls cross: each waits for one that waits for it. argv: the way. Prints ``lost`` as JSON."""

from __future__ import annotations

import json
import sys

import mlx.core as mx

import jlaunch

LARGE = 4 << 20


def main(way: str) -> None:
    """Cross, and then go on as if nothing had been."""
    group = mx.distributed.init()
    rank, size = group.rank(), group.size()
    mx.eval(mx.distributed.all_sum(mx.ones((4,))))
    if way == "send-send" and rank < 2:
        mx.eval(mx.distributed.send(mx.ones((LARGE,)), 1 - rank))
    elif way == "send-ring":
        mx.eval(mx.distributed.send(mx.ones((LARGE,)), (rank + 1) % size))
        mx.eval(mx.distributed.recv((LARGE,), mx.float32, (rank - 1) % size))
    elif way == "recv-recv" and rank < 2:
        mx.eval(mx.distributed.recv((4,), mx.float32, 1 - rank))
    elif way == "recv-ring":
        mx.eval(mx.distributed.recv((4,), mx.float32, (rank + 1) % size))
    elif way == "recv-sum" and rank == 1:
        mx.eval(mx.distributed.recv((4,), mx.float32, 0))
    mx.eval(mx.distributed.all_sum(mx.ones((4,))))


try:
    main(sys.argv[1])
except jlaunch.PeerLost as loss:
    print(json.dumps({"kind": "lost", "reasons": dict(loss.reasons), "text": str(loss)}), flush=True)
