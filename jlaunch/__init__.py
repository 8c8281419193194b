"""jlaunch: a supervising launcher for MLX jobs, and what a training script may ask it.

Everything here is loaded on first use: importing jlaunch costs nothing, in a rank above all.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jlaunch.backend.errors import CollectiveError as CollectiveError
    from jlaunch.backend.errors import ControlLost as ControlLost
    from jlaunch.backend.errors import JobStopping as JobStopping
    from jlaunch.backend.errors import PeerLost as PeerLost
    from jlaunch.backend.errors import VerbsError as VerbsError
    from jlaunch.runtime.script import Snapshot as Snapshot
    from jlaunch.runtime.script import epoch as epoch
    from jlaunch.runtime.script import failure as failure
    from jlaunch.runtime.script import report as report
    from jlaunch.runtime.script import restart_count as restart_count
    from jlaunch.runtime.script import restore as restore
    from jlaunch.runtime.script import snapshot as snapshot

_HOMES = {
    "CollectiveError": "jlaunch.backend.errors",
    "ControlLost": "jlaunch.backend.errors",
    "JobStopping": "jlaunch.backend.errors",
    "PeerLost": "jlaunch.backend.errors",
    "VerbsError": "jlaunch.backend.errors",
    "Snapshot": "jlaunch.runtime.script",
    "epoch": "jlaunch.runtime.script",
    "failure": "jlaunch.runtime.script",
    "report": "jlaunch.runtime.script",
    "restart_count": "jlaunch.runtime.script",
    "restore": "jlaunch.runtime.script",
    "snapshot": "jlaunch.runtime.script",
}

__all__ = [
    "CollectiveError",
    "ControlLost",
    "JobStopping",
    "PeerLost",
    "Snapshot",
    "VerbsError",
    "epoch",
    "failure",
    "report",
    "restart_count",
    "restore",
    "snapshot",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'jlaunch' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
