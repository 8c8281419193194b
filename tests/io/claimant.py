"""Holds a rank's claim as the native keeper does, written a second time: what the kernel must mark.

    python claimant.py RANK_BLOCK MEMORY_MIB     says "claimed", then ends with the code it is told

Linux only: a robust futex, registered for the main thread through ctypes.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import sys

OWNER_OFFSET = 128
"""``ControlBlock::rank_part.owner``: after the header's and the bell's cache lines."""

SET_ROBUST_LIST = {"x86_64": 273, "aarch64": 99}[platform.machine()]


class RobustListHead(ctypes.Structure):
    """``struct robust_list_head`` and, after it, the one node."""

    _fields_ = [
        ("next", ctypes.c_void_p),
        ("futex_offset", ctypes.c_long),
        ("pending", ctypes.c_void_p),
        ("node", ctypes.c_void_p),
    ]


def main(path: str, memory_mib: int) -> int:
    with open(path, "r+b") as file:
        block = mmap.mmap(file.fileno(), 0)
    ballast = bytearray(memory_mib << 20)
    for place in range(0, len(ballast), 4096):
        ballast[place] = 1
    word = ctypes.c_uint32.from_buffer(block, OWNER_OFFSET)
    pid_word = ctypes.c_uint32.from_buffer(block, OWNER_OFFSET + 4)
    head = RobustListHead()
    node = ctypes.addressof(head) + RobustListHead.node.offset
    head.next, head.node = node, ctypes.addressof(head)
    head.futex_offset = ctypes.addressof(word) - node
    libc = ctypes.CDLL(None, use_errno=True)
    # The main thread's thread id is the process id. The watch's bit (FUTEX_WAITERS) stays.
    word.value = os.getpid() | (word.value & 0x80000000)
    pid_word.value = os.getpid()
    if libc.syscall(SET_ROBUST_LIST, ctypes.byref(head), 24) != 0:
        raise OSError(ctypes.get_errno(), "set_robust_list")
    print("claimed", flush=True)
    code = int(sys.stdin.readline())
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
