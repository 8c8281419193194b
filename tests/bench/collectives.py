"""``all_sum`` through ``mx.distributed`` on one machine: jlaunch, MLX's ring, MLX over Open MPI, in turns.

    python -m tests.bench.collectives [--ranks 2 4] [--rounds 3] [--sides jaccl jaccl-ring ring mpi]

All sides take turns within a round, so that what else the machine does meets each of them. A sample is
one ``mx.eval`` of one ``all_sum`` in rank 0. The ratio is jlaunch's median over the other side's: below 1
is faster. The floor is an ``mx.eval`` of one tiny operation in the same process.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from tests.bench import common

SIZES = {0: 200, 1 << 10: 400, 64 << 10: 300, 1 << 20: 100, 16 << 20: 16}
"""Bytes to samples per round. The floor (0) comes first."""
SLOW = 10
"""MLX's ring with more ranks than cores takes tens of milliseconds: so many times fewer samples."""
OURS = ("jaccl", "jaccl-ring")
LIMIT_S = 60.0

Samples = dict[tuple[str, int], list[float]]


def command_of(side: str, ranks: int, port: int) -> list[str]:
    """The launcher's part of the command line of a side."""
    if side == "mpi":
        # The wheel's libmpi.so is a linker's text, which MLX cannot open.
        return common.mpirun(ranks, "-x", f"MLX_MPI_LIBNAME={Path(sys.prefix) / 'lib' / 'libmpi.so.40'}")
    if side == "ring":
        return common.mlx_launch(ranks, port)
    return common.jlaunch(ranks, "--backend", side)


def run(side: str, ranks: int, port: int, samples: Samples) -> None:
    """One run of one side: all sizes."""
    fewer = SLOW if side == "ring" and ranks > 2 else 1
    plan = [f"{max(count // fewer, 3)}:{size}" for size, count in SIZES.items()]
    with common.scratch() as directory:
        fifo = common.Fifo(directory / "fifo")
        program = [sys.executable, str(common.PROGRAMS / "collectives.py"), str(fifo.path)]
        words = [*command_of(side, ranks, port), *program, side if side in ("ring", "mpi") else "any", *plan]
        with common.running(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
            for _ in plan:
                line = fifo.line(LIMIT_S)
                if line is None:
                    raise SystemExit(f"{side}, {ranks} ranks: no answer within {LIMIT_S:g} s")
                samples[side, int(line[0])] += [float(word) for word in line[1:]]
        fifo.close()


def report(ranks: int, sides: list[str], samples: Samples) -> None:
    """A table: median, p99 and bandwidth of each side, and what the first two are of the others."""
    for size in SIZES:
        label = f"{size >> 10} KiB" if size else "floor"
        medians = {side: statistics.median(samples[side, size]) for side in sides}
        for side in sides:
            ordered = sorted(samples[side, size])
            p99 = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
            ratios = "  ".join(
                f"{medians[side] / medians[other]:5.2f} of {other}"
                for other in sides
                if side in OURS and other not in OURS and size
            )
            rate = f"{size / medians[side] / 1e3:6.2f} GB/s" if size else " " * 11
            print(
                f"{ranks} ranks {label:>9s}  {side:10s} median {medians[side]:9.1f}  p99 {p99:9.1f} us  {rate}  {ratios}",
                flush=True,
            )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sides", nargs="+", default=["jaccl", "ring", "mpi"])
    options = parser.parse_args()
    port = 23000
    for ranks in options.ranks:
        samples: Samples = defaultdict(list)
        for _ in range(options.rounds):
            for side in options.sides:
                run(side, ranks, port, samples)
                port += 40
        report(ranks, options.sides, samples)


if __name__ == "__main__":
    main()
