"""SIGKILL of a rank -> all ranks started again (``--on-peer-loss restart``).

    python -m tests.bench.restart [--trials 10]

A sample ends when the last rank of the next epoch has told the FIFO.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time

from tests.bench import common

RANKS = 4


def one() -> float:
    """Milliseconds from the kill to the last new rank's line."""
    with common.scratch() as directory:
        fifo = common.Fifo(directory / "fifo")
        command = common.jlaunch(RANKS, "--on-peer-loss", "restart")
        words = [*command, sys.executable, str(common.PROGRAMS / "quiet.py"), str(fifo.path)]
        with common.running(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
            first = [fifo.line(60) for _ in range(RANKS)]
            if None in first:
                raise RuntimeError(f"not all ranks came up: {first}")
            pids = [int(line[2]) for line in first if line]
            began = time.monotonic()
            os.kill(pids[2], signal.SIGKILL)
            again = [fifo.line(60) for _ in range(RANKS)]
            ended = time.monotonic()
            if None in again:
                raise RuntimeError(f"not all ranks came up again: {again}")
        fifo.close()
    return (ended - began) * 1e3


def main() -> None:
    """Print every sample."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10)
    options = parser.parse_args()
    print(common.row("jlaunch    death -> 4 ranks started again", [one() for _ in range(options.trials)]))


if __name__ == "__main__":
    main()
