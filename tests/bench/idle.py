"""What a launcher costs while its ranks are quiet: CPU and memory of every process that is not a rank.

    python -m tests.bench.idle [--seconds 10] [--ranks 4 64]

CPU is user + system time over the span, in percent of one core; memory is PSS (shared pages divided by
their users), from /proc.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.bench import common


def cost(command: list[str], ranks: int, seconds: float) -> tuple[float, float]:
    """CPU in percent of a core and PSS in MB of the launcher's own processes."""
    with common.scratch() as directory:
        fifo = common.Fifo(directory / "fifo")
        words = [*command, sys.executable, str(common.PROGRAMS / "quiet.py"), str(fifo.path)]
        with common.running(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as launcher:
            lines = [fifo.line(120) for _ in range(ranks)]
            if None in lines:
                raise RuntimeError(f"not all ranks came up: {words}")
            rank_pids = {int(line[2]) for line in lines if line}
            head = psutil.Process(launcher.pid)
            own = [p for p in [head, *head.children(recursive=True)] if p.pid not in rank_pids]
            before = sum(sum(p.cpu_times()[:2]) for p in own)
            began = time.monotonic()
            # The span is the measurement itself: nobody reports, and that is the point.
            if fifo.line(seconds) is not None:
                raise RuntimeError("a quiet rank spoke")
            spent = sum(sum(p.cpu_times()[:2]) for p in own) - before
            span = time.monotonic() - began
            memory = sum(pss_mb(p.pid) for p in own)
        fifo.close()
    return 100 * spent / span, memory


def pss_mb(pid: int) -> float:
    """Proportional set size of one process."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no PSS for process {pid}")


def main() -> None:
    """Print one line per launcher and size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 64])
    options = parser.parse_args()
    port = 44000
    for ranks in options.ranks:
        sides = {
            "jlaunch": common.jlaunch(ranks),
            "mlx.launch": common.mlx_launch(ranks, port),
            "mpirun": common.mpirun(ranks),
        }
        port += ranks
        for name, command in sides.items():
            cpu, memory = cost(command, ranks, options.seconds)
            print(f"{name:10s} {ranks:3d} quiet ranks: {cpu:6.1f} % of a core, {memory:6.1f} MB", flush=True)


if __name__ == "__main__":
    main()
