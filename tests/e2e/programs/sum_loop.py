"""A rank that runs ``all_sum`` over and over and says, in JSON lines on stdout, what became of it.

argv: TURNS SIZE_BYTES. Lines: ``up`` (pid) after the first turn, then ``done`` (digest of all results) or
``lost`` (what PeerLost carried) or ``stopping``; ``finally`` and ``atexit`` prove that those ran.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import resource
import sys
import time

import mlx.core as mx

import jlaunch

TURNS, SIZE = int(sys.argv[1]), int(sys.argv[2])


def say(kind: str, **fields: object) -> None:
    """One JSON line."""
    print(json.dumps({"kind": kind, "rank": int(os.environ["JLAUNCH_RANK"]), **fields}), flush=True)


def cpu_s() -> float:
    """User and system time of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Loop, and tell the end."""
    group = mx.distributed.init(strict=True)
    base = mx.random.normal((SIZE // 4,), key=mx.random.key(7 + group.rank()))
    mx.eval(base)
    digest = hashlib.sha256()
    for turn in range(TURNS):
        before_cpu, before = cpu_s(), time.monotonic()
        total = mx.distributed.all_sum(base * (1.0 + turn))
        mx.eval(total)
        span = time.monotonic() - before
        if span > 2.0:
            say("waited", turn=turn, span_s=span, cpu_s=cpu_s() - before_cpu)
        digest.update(memoryview(total))
        if turn == 0:
            say("up", pid=os.getpid(), epoch=jlaunch.epoch(), restart_count=jlaunch.restart_count())
    say("done", digest=digest.hexdigest())


atexit.register(say, "atexit")
try:
    main()
except jlaunch.PeerLost as error:
    say(
        "lost",
        ranks=list(error.ranks),
        reasons=dict(error.reasons),
        collective=error.collective,
        seq=error.seq,
        epoch=error.epoch,
        waited_s=error.waited_s,
    )
except jlaunch.JobStopping:
    say("stopping")
    raise
finally:
    say("finally")
