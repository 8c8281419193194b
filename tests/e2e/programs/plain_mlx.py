"""An unchanged MLX script: nothing of jlaunch in it. Prints its group and a sum as JSON."""

import json
import sys

import mlx.core as mx
import mlx.nn as nn

group = mx.distributed.init()
total = mx.distributed.all_sum(mx.array([1.0, group.rank()]))
grads = nn.average_gradients({"w": mx.full((3,), group.rank())})
print(
    json.dumps(
        {
            "kind": "sum",
            "rank": group.rank(),
            "size": group.size(),
            "total": total.tolist(),
            "mean": grads["w"].tolist(),
            "argv": sys.argv[1:],
        }
    ),
    flush=True,
)
