"""A rank's promise to say where it is: its Python stacks, on a signal, whatever it is doing.

Rules of this file. ``faulthandler`` writes all threads' stacks from a C signal handler, so also while the
main thread sits in native code or waits for a lock; then it chains to a handler of ours, which marks the
end. They go into the FIFO that the agent holds open, and never block: what does not fit is lost. The
signal is SIGURG, which nobody misses where it is not handled: its default is to be ignored, on Linux and
on macOS. A program that handles it itself keeps it, and its stacks cannot be had.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jlaunch.backend._ext import Membership

STACK_SIGNAL = signal.SIGURG


def arm(native: Any, membership: Membership, path: str) -> bool:
    """Write the stacks to the FIFO ``path`` on ``STACK_SIGNAL``, and say so in the control block.

    False, and nothing is changed, if the program handles the signal itself or nobody reads the FIFO.
    """
    if signal.getsignal(STACK_SIGNAL) is not signal.SIG_DFL:
        return False
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    native.mark_end_of_stack(int(STACK_SIGNAL), fd)
    faulthandler.register(STACK_SIGNAL, file=fd, all_threads=True, chain=True)
    membership.arm_stack(int(STACK_SIGNAL))
    return True
