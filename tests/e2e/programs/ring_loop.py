"""All of MLX's own: a sum, then (with a word) sums without end. argv: [loop]. Prints ``up`` as JSON."""

import json
import os
import sys

import mlx.core as mx

group = mx.distributed.init()
total = mx.distributed.all_sum(mx.array([1.0, group.rank()]))
line = {"kind": "up", "rank": group.rank(), "size": group.size(), "pid": os.getpid(), "total": total.tolist()}
print(json.dumps(line), flush=True)
while sys.argv[1:]:
    mx.eval(mx.distributed.all_sum(mx.ones((1000,))))
