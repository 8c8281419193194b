"""SIGKILL of the launcher -> ranks left, after 2 s: jlaunch, mlx.launch, mpirun.

    python -m tests.bench.supervisor_killed [--trials 5]

Also prints when jlaunch's last rank was gone (by pidfd). Ranks that are left over are killed here.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import subprocess
import sys
import time

from tests.bench import common

RANKS = 4
BOUND_S = 2.0


def one(command: list[str]) -> tuple[int, float]:
    """Ranks alive two seconds after the launcher's SIGKILL, and milliseconds to the last end seen."""
    with common.scratch() as directory:
        fifo = common.Fifo(directory / "fifo")
        words = [*command, sys.executable, str(common.PROGRAMS / "quiet.py"), str(fifo.path)]
        launcher = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        lines = [fifo.line(60) for _ in range(RANKS)]
        if None in lines:
            raise RuntimeError(f"not all ranks came up: {words}")
        watched = {os.pidfd_open(int(line[2])): int(line[2]) for line in lines if line}
        began = time.monotonic()
        launcher.kill()
        launcher.wait()
        last = began
        while watched and (left := began + BOUND_S - time.monotonic()) > 0:
            for gone in select.select(list(watched), [], [], left)[0]:
                os.close(gone)
                del watched[gone]
                last = time.monotonic()
        remaining = len(watched)
        for pidfd, pid in watched.items():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.close(pidfd)
        fifo.close()
    return remaining, (last - began) * 1e3


def main() -> None:
    """Print what each launcher leaves behind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=5)
    options = parser.parse_args()
    sides = {
        "jlaunch": common.jlaunch(RANKS),
        "mlx.launch": common.mlx_launch(RANKS, 43000),
        "mpirun": common.mpirun(RANKS),
    }
    for name, command in sides.items():
        results = [one(command) for _ in range(options.trials)]
        print(f"{name:10s} ranks left after {BOUND_S:.0f} s: {[count for count, _ in results]} of {RANKS}")
        if name == "jlaunch":
            print(common.row("jlaunch    last rank gone after", [ms for _, ms in results]), flush=True)


if __name__ == "__main__":
    main()
