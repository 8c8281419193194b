"""How the ranks' programs of these tests begin."""

from __future__ import annotations

PRELUDE = """
import atexit, json, signal, sys, threading, time
import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
import jlaunch

group = mx.distributed.init()
all_sum = mx.distributed.all_sum

def say(**words):
    print(json.dumps(words), flush=True)

def until(true):
    for _ in range(6000):
        if true():
            return
        time.sleep(0.01)
    raise SystemExit("waited a minute")
"""
