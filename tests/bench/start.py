"""Command -> all ranks running, and -> first collective: jlaunch, mlx.launch, mpirun in turns.

    python -m tests.bench.start [--trials 10] [--ranks 4 64]

Time zero is right before the command is started; a sample ends when the last rank has told the FIFO.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from tests.bench import common


def one(command: list[str], program: str, ranks: int) -> float:
    """Milliseconds from the start of the command to the last rank's line."""
    with common.scratch() as directory:
        fifo = common.Fifo(directory / "fifo")
        words = [*command, sys.executable, str(common.PROGRAMS / program), str(fifo.path)]
        began = time.monotonic()
        with common.running(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
            for count in range(ranks):
                if fifo.line(120) is None:
                    raise RuntimeError(f"{count} of {ranks} ranks came up: {words}")
            ended = time.monotonic()
        fifo.close()
    return (ended - began) * 1e3


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 64])
    options = parser.parse_args()
    port = 42000
    for ranks in options.ranks:
        samples: dict[str, list[float]] = {"jlaunch": [], "mlx.launch": [], "mpirun": []}
        for _ in range(options.trials):
            port += ranks
            samples["jlaunch"].append(one(common.jlaunch(ranks), "first_line.py", ranks))
            samples["mlx.launch"].append(one(common.mlx_launch(ranks, port), "first_line.py", ranks))
            samples["mpirun"].append(one(common.mpirun(ranks), "first_line.py", ranks))
        for name, values in samples.items():
            print(common.row(f"{name:10s} {ranks} ranks, program runs", values), flush=True)
    collective: dict[str, list[float]] = {"jlaunch": [], "mlx.launch": []}
    for _ in range(options.trials):
        port += 8
        collective["jlaunch"].append(one(common.jlaunch(4), "first_collective.py", 4))
        collective["mlx.launch"].append(one(common.mlx_launch(4, port), "first_collective.py", 4))
    for name, values in collective.items():
        print(common.row(f"{name:10s} 4 ranks, first collective", values), flush=True)
    ours, theirs = collective["jlaunch"], min(collective["mlx.launch"])
    print(
        f"           jlaunch's median over mlx.launch's fastest: {sorted(ours)[len(ours) // 2] / theirs:.2f}"
    )


if __name__ == "__main__":
    main()
