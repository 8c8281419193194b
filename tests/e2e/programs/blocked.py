"""Rank 1 writes more than anybody reads while the others wait for it in a collective. argv: MIB."""

from __future__ import annotations

import os
import sys

import mlx.core as mx

MIB = int(sys.argv[1])

group = mx.distributed.init(strict=True)
mx.eval(mx.distributed.all_sum(mx.ones((1024,))))
if os.environ["JLAUNCH_RANK"] == "1":
    for _ in range(MIB * 1024):
        sys.stdout.write("x" * 1023 + "\n")
    sys.stdout.flush()
total = mx.distributed.all_sum(mx.array(1.0)).item()
print(f"done {total}", flush=True)
