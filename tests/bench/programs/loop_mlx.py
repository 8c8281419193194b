"""One rank of the kill bench under jlaunch or mlx.launch: all_sum in a loop, tell when it breaks.

argv: FIFO SIZE_BYTES BALLAST_MIB VICTIM. Lines to the FIFO: ``up RANK PID`` once the loop turns,
``caught RANK MONOTONIC_NS WHAT`` when a collective raised.
"""

from __future__ import annotations

import os
import sys
import time

import mlx.core as mx


def tell(fifo: int, *words: object) -> None:
    """One line, written at once (shorter than PIPE_BUF, so never torn)."""
    os.write(fifo, (" ".join(str(word) for word in words) + "\n").encode())


def main() -> None:
    """Loop until the loss."""
    path, size, ballast_mib, victim = sys.argv[1], *(int(word) for word in sys.argv[2:5])
    fifo = os.open(path, os.O_WRONLY)
    group = mx.distributed.init(strict=True)
    ballast = bytearray(ballast_mib << 20) if group.rank() == victim else b""
    for offset in range(0, len(ballast), 4096):
        ballast[offset] = 1
    x = mx.ones((size // 4,), dtype=mx.float32)
    mx.eval(x)
    turns = 0
    try:
        while True:
            mx.eval(mx.distributed.all_sum(x))
            turns += 1
            if turns == 20:
                tell(fifo, "up", group.rank(), os.getpid())
    except RuntimeError as error:
        now = time.monotonic_ns()
        reasons = getattr(error, "reasons", None)
        tell(fifo, "caught", group.rank(), now, str(reasons).replace(" ", "") if reasons else "unnamed")


main()
