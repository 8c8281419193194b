"""What the demo's ranks run: 16 MB ``all_sum``, over and over. An ordinary MLX script.

    loop.py FIFO TURNS

Each rank tells the demo on the FIFO, a JSON line each, when it is ``up``, that a ``turn`` is over (for the
first turn after a long wait), that it ``caught`` a loss, is ``stopping``, or is ``done``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import mlx.core as mx

import jlaunch

ELEMENTS = 4 * 1024 * 1024
"""16 MB of float32."""

LONG_S = 0.5
"""A turn that took longer than this is told: somebody was waited for."""


class Teller:
    """Lines for the demo. One write each: shorter than a pipe's atomic size, so ranks never mix."""

    def __init__(self, path: str, rank: int) -> None:
        self._fd = os.open(path, os.O_WRONLY)
        self._rank = rank

    def tell(self, what: str, **fields: Any) -> None:
        """One line: who, what, and when on the machine's monotonic clock."""
        line = {"what": what, "rank": self._rank, "at": time.monotonic(), **fields}
        os.write(self._fd, json.dumps(line).encode() + b"\n")


def main() -> None:
    """Loop, and tell what becomes of it."""
    group = mx.distributed.init(strict=True)
    teller = Teller(sys.argv[1], group.rank())
    part = mx.full((ELEMENTS,), float(group.rank() + 1))
    expected = group.size() * (group.size() + 1) / 2
    right = True
    try:
        for turn in range(int(sys.argv[2])):
            began = time.monotonic()
            total = mx.distributed.all_sum(part)
            mx.eval(total)
            if turn == 0:
                teller.tell("up", pid=os.getpid(), epoch=jlaunch.epoch())
            elif time.monotonic() - began > LONG_S:
                teller.tell("turn", turn=turn)
            right = right and total[turn].item() == expected
        right = right and bool(mx.all(total == expected).item())
        teller.tell("done", right=right)
    except jlaunch.PeerLost as loss:
        reasons = {str(rank): reason for rank, reason in loss.reasons.items()}
        teller.tell("caught", reasons=reasons, collective=loss.collective, seq=loss.seq)
    except jlaunch.JobStopping:
        teller.tell("stopping")
        raise
    finally:
        teller.tell("finally")


if __name__ == "__main__":
    main()
