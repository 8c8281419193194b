"""One rank of the kill bench under Open MPI with ULFM; same arguments and lines as ``loop_mlx.py``."""

from __future__ import annotations

import os
import sys
import time

import numpy as np
from mpi4py import MPI


def main() -> None:
    """Loop until the loss."""
    path, size, ballast_mib, victim = sys.argv[1], *(int(word) for word in sys.argv[2:5])
    fifo = os.open(path, os.O_WRONLY)
    comm = MPI.COMM_WORLD
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    rank = comm.Get_rank()
    ballast = np.ones(ballast_mib << 20, dtype=np.uint8) if rank == victim else None
    x = np.ones(size // 4, dtype=np.float32)
    out = np.empty_like(x)
    turns = 0
    try:
        while True:
            comm.Allreduce(x, out)
            turns += 1
            if turns == 20:
                os.write(fifo, f"up {rank} {os.getpid()}\n".encode())
    except MPI.Exception:
        now = time.monotonic_ns()
        comm.Revoke()
        os.write(fifo, f"caught {rank} {now} unnamed\n".encode())
        os._exit(0)
    del ballast


main()
