"""The rank's half of the backend, as MLX sees it: typed face of ``src/bindings.cpp``.

Importing it needs the very version of MLX that it was built against; go through ``jlaunch.backend.load``.
It registers how a loss becomes a Python exception in every call of MLX, in the whole process.
"""

from collections.abc import Sequence
from typing import Any

from jlaunch.backend.errors import CollectiveError

class Membership:
    """This process as a rank: its claim, its control block, its world group. One in a process.

    In a child made by fork every method raises RuntimeError, but ``leave`` does nothing.
    """

    def __init__(self, rank_block: str, host_block: str) -> None:
        """Map the two blocks and claim the rank; RuntimeError names a live process that holds it."""
    def open(
        self,
        *,
        rank: int,
        size: int,
        epoch: int,
        provider: str,
        devices: Sequence[Sequence[str]],
        ring: bool,
        deadline_s: float,
    ) -> None:
        """Open devices and queue pairs: to all ranks, in a ``ring`` to the neighbours.

        ``deadline_s`` may be ``inf``. Raises VerbsError, ControlLost.
        """
    def address(self) -> bytes:
        """What the other ranks need to connect."""
    def connect(self, addresses: Sequence[bytes]) -> None:
        """Connect to all ranks (``addresses`` by rank), waiting for none. Raises VerbsError."""
    def formed(self) -> None:
        """All ranks are connected."""
    def group(self) -> Any:
        """The group as an ``mx.distributed.Group``."""
    def failure(self) -> CollectiveError | None:
        """The group's first failure."""
    def report(self) -> None:
        """Count a report in the control block; wait-free."""
    def arm_stack(self, signal: int) -> None:
        """Say in the control block that this signal makes the process write its stacks; 0: none does."""
    def leave(self) -> None:
        """Break what still runs, release the group's resources, free the claim. Idempotent."""

def mark_end_of_stack(signal: int, fd: int) -> None:
    """Handle ``signal`` by writing a zero byte to ``fd``: what faulthandler chains to. Raises OSError."""

def claim_stop() -> bool:
    """In the main thread: whether JobStopping is still to be raised there, which the caller does now."""

def close_channels() -> None:
    """The interpreter ends: raise nothing in the main thread from outside a call any more."""
