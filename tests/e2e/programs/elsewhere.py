"""Rank 2 is somewhere else while the others wait for it. argv: WHERE [catch] [own-handler]."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

import mlx.core as mx

import jlaunch


def say(kind: str, **fields: object) -> None:
    """One JSON line."""
    print(json.dumps({"kind": kind, "rank": int(os.environ["JLAUNCH_RANK"]), **fields}), flush=True)


def beat() -> None:
    """A thread that lives, whatever the main thread does."""
    pulse = threading.Event()
    while not pulse.wait(0.05):
        pass


def nap() -> None:
    """Asleep."""
    signal.pause()


def compute() -> None:
    """In native code, for as long as it is let."""
    while True:
        x = mx.random.normal((1500, 1500))
        for _ in range(40):
            x = x @ x / 1500
        mx.eval(x)


def deadlock() -> None:
    """In a lock that nobody frees."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


if "own-handler" in sys.argv:
    signal.signal(signal.SIGURG, lambda *_: say("urgent"))
group = mx.distributed.init()
threading.Thread(target=beat, daemon=True).start()
mx.eval(mx.distributed.all_sum(mx.ones((4,))))
say("up", pid=os.getpid())
try:
    if group.rank() == 2:
        {"sleep": nap, "native": compute, "lock": deadlock}[sys.argv[1]]()
    mx.eval(mx.distributed.all_sum(mx.ones((4,))))
except jlaunch.PeerLost as loss:
    say("lost", reasons=dict(loss.reasons))
    if "catch" not in sys.argv:
        raise
