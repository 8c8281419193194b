"""What a collective raises: typed, and a ``RuntimeError``, since that is what MLX's callers catch today.

::

    CollectiveError(RuntimeError)   a collective could not be completed; the group is sticky after it
    ├─ PeerLost        a peer is lost: ``ranks`` says who, ``reasons`` why
    ├─ JobStopping     the job is being stopped
    │   └─ ControlLost     by nobody: this rank's agent is gone, or silent for longer than the lease
    └─ VerbsError      a verbs call failed here
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# Tracebacks show the names by which programs import them (``__module__`` below).

REASONS: Final = (
    "none",
    "exited",
    "killed",
    "paused",
    "host_lost",
    "stuck",
    "desync",
    "init_failed",
    "control_lost",
)
"""Words for the numbers of ``Reason`` in src/contract.h."""

COLLECTIVES: Final = ("none", "all_sum", "all_max", "all_min", "all_gather", "sum_scatter", "send", "recv")
"""Words for the numbers of ``Collective`` in src/contract.h."""


class CollectiveError(RuntimeError):
    """A collective could not be completed. Every later one on the same group raises the same.

    ``collective`` is MLX's name of the collective that failed first ('none' outside of one), ``seq`` its
    sequence number in the group, ``epoch`` the group's generation, ``waited_s`` how many seconds it had
    waited. ``ranks`` are the ranks lost, ascending; ``reasons`` maps each to one of ``exited``, ``killed``,
    ``paused``, ``host_lost``, ``stuck``, ``desync``, ``init_failed``, ``control_lost``.
    """

    __module__ = "jlaunch"

    def __init__(
        self,
        message: str,
        *,
        reasons: Mapping[int, str] | None = None,
        collective: str = "none",
        seq: int = 0,
        epoch: int = 0,
        waited_s: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.reasons: dict[int, str] = dict(sorted((reasons or {}).items()))
        self.ranks: tuple[int, ...] = tuple(self.reasons)
        self.collective = collective
        self.seq = seq
        self.epoch = epoch
        self.waited_s = waited_s

    def __reduce__(self) -> tuple[object, ...]:
        # The default hands only the message to the class, and __init__ takes no more by position.
        return (type(self), self.args, self.__dict__)


class PeerLost(CollectiveError):
    """A peer is lost: it exited, was killed, is paused past the limit, its host is gone, …"""

    __module__ = "jlaunch"


class JobStopping(CollectiveError):
    """The job is being stopped: clean up and end."""

    __module__ = "jlaunch"


class ControlLost(JobStopping):
    """The rank's agent is gone, or silent for longer than the lease: the rank must end."""

    __module__ = "jlaunch"


class VerbsError(CollectiveError):
    """A verbs call failed on this rank: names the call, the error and a remedy."""

    __module__ = "jlaunch"


_CLASSES: Final[Mapping[str, type[CollectiveError]]] = {
    kind.__name__: kind for kind in (CollectiveError, PeerLost, JobStopping, ControlLost, VerbsError)
}


def from_native(
    kind: str,
    detail: str,
    reasons: Mapping[int, int],
    collective: int,
    seq: int,
    epoch: int,
    waited_s: float,
) -> CollectiveError:
    """The exception for a ``Failure`` of src/error.h; called by the native code."""
    return _CLASSES[kind](
        detail,
        reasons={rank: REASONS[reason] for rank, reason in reasons.items()},
        collective=COLLECTIVES[collective],
        seq=seq,
        epoch=epoch,
        waited_s=waited_s,
    )
