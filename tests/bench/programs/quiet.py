"""One rank of the idle and the orphan benches: tell the FIFO its pid, then wait for a signal. argv: FIFO."""

import os
import signal
import sys

rank = os.environ.get("MLX_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
os.write(os.open(sys.argv[1], os.O_WRONLY), f"up {rank} {os.getpid()}\n".encode())
signal.pause()
