"""A rank whose batches come from worker processes, as data loaders make them. argv: START_METHOD."""

from __future__ import annotations

import json
import multiprocessing
import sys


def load(number: int) -> int:
    """In a worker: NumPy's work, as loaders do it, and MLX's where a fresh process can have it."""
    if multiprocessing.get_start_method() == "fork":
        return number * number  # MLX does not live through a fork
    import mlx.core as mx

    return int((mx.array(number) * number).item())


def main() -> None:
    """Load, and sum over the ranks."""
    import mlx.core as mx

    multiprocessing.set_start_method(sys.argv[1])
    group = mx.distributed.init()
    with multiprocessing.Pool(2) as pool:
        batches = pool.map(load, range(4))
    total = mx.distributed.all_sum(mx.array(1.0)).item()
    line = {"kind": "loaded", "rank": group.rank(), "batches": batches, "total": total}
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
