"""SIGKILL of a rank -> catchable error in the last survivor, jlaunch against Open MPI with ULFM.

    python -m tests.bench.kill_latency [--trials 30] [--ranks 4 8 16] [--quick]

Both sides take turns in one run, so that a drift of the machine's speed hits both. Every sample is
printed. Time zero is read right before ``kill``; a survivor's time right after its ``except``; both are
CLOCK_MONOTONIC of one machine.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time

from tests.bench import common

VICTIM = 2


def one(command: list[str], program: str, ranks: int, size: int, ballast_mib: int) -> tuple[float, set[str]]:
    """One job, one kill: milliseconds to the last survivor's error, and what the survivors were told."""
    with common.scratch() as directory:
        fifo = common.Fifo(directory / "fifo")
        words = [*command, sys.executable, str(common.PROGRAMS / program)]
        arguments = [str(fifo.path), str(size), str(ballast_mib), str(VICTIM)]
        with common.running(words + arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
            pids: dict[int, int] = {}
            while len(pids) < ranks:
                line = fifo.line(120)
                if line is None:
                    raise RuntimeError(f"only ranks {sorted(pids)} of {ranks} came up: {words}")
                pids[int(line[1])] = int(line[2])
            began = time.monotonic_ns()
            os.kill(pids[VICTIM], signal.SIGKILL)
            times: list[int] = []
            told: set[str] = set()
            while len(times) < ranks - 1:
                line = fifo.line(60)
                if line is None:
                    raise RuntimeError(f"{len(times)} of {ranks - 1} survivors saw the loss: {words}")
                times.append(int(line[2]))
                told.add(line[3])
        fifo.close()
    return (max(times) - began) / 1e6, told


def compare(trials: int, ranks: int, size: int, ballast_mib: int) -> None:
    """One configuration, both sides in turns."""
    ours: list[float] = []
    theirs: list[float] = []
    named: set[str] = set()
    for _ in range(trials):
        latency, told = one(
            common.jlaunch(ranks, "--output", "none"), "loop_mlx.py", ranks, size, ballast_mib
        )
        ours.append(latency)
        named |= told
        mpi = common.mpirun(ranks, "--with-ft", "ulfm")
        theirs.append(one(mpi, "loop_mpi.py", ranks, size, ballast_mib)[0])
    label = f"{ranks} ranks, {size >> 10} KiB, {ballast_mib} MiB resident"
    print(common.row(f"jlaunch   {label}", ours), flush=True)
    print(common.row(f"ULFM      {label}", theirs), flush=True)
    ratio = statistics.median(ours) / statistics.median(theirs)
    print(f"          ratio of medians {ratio:.2f}; survivors were told {sorted(named)}", flush=True)


def main() -> None:
    """Run the whole table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--quick", action="store_true", help="three trials of two configurations")
    options = parser.parse_args()
    if options.quick:
        options.trials, options.ranks = 3, [4]
    for ranks in options.ranks:
        for size in (4 << 10, 16 << 20):
            compare(options.trials, ranks, size, 0)
    compare(options.trials, min(options.ranks), 4 << 10, 2048)


if __name__ == "__main__":
    main()
