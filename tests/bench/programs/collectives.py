"""Times ``all_sum`` of some sizes in rank 0 and tells the FIFO: size in bytes, then every sample in microseconds.

    collectives.py FIFO BACKEND COUNT:BYTES …

A COUNT of 0 bytes times the floor: one ``mx.eval`` of a tiny operation, without a collective.
"""

import sys
import time

import mlx.core as mx

WARM_UP = 5


def main() -> None:
    """Run the sizes in the given order, the same in all ranks."""
    fifo, backend, *plan = sys.argv[1:]
    group = mx.distributed.init(strict=True, backend=backend)
    mx.set_default_device(mx.cpu)
    for entry in plan:
        count, size = (int(word) for word in entry.split(":"))
        x = mx.ones((max(size // 4, 16),))
        mx.eval(x)
        samples = []
        for turn in range(count + WARM_UP):
            began = time.perf_counter()
            mx.eval(mx.distributed.all_sum(x) if size else x + 1)
            if turn >= WARM_UP:
                samples.append((time.perf_counter() - began) * 1e6)
        if group.rank() == 0:
            with open(fifo, "w", encoding="utf-8") as out:
                out.write(f"{size} {' '.join(f'{sample:.1f}' for sample in samples)}\n")


if __name__ == "__main__":
    main()
