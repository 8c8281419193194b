"""Free TCP ports of this machine."""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    """Draw ``count`` distinct ports of 127.0.0.1 that nobody listens on now.

    All are held until the last is drawn, so none is drawn twice. Raises OSError if there are not enough.
    """
    held = []
    try:
        for _ in range(count):
            listener = socket.socket()
            held.append(listener)
            listener.bind(("127.0.0.1", 0))
        return [int(listener.getsockname()[1]) for listener in held]
    finally:
        for listener in held:
            listener.close()
