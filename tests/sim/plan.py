"""What one simulated process will do, faults from outside apart."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class RankPlan:
    """What one process will do, faults from outside apart."""

    steps: int = 8
    compute_s: float = 0.5
    init_delay_s: float = 0.1
    claims: bool = True
    spawn_error: str = ""
    init_error: str = ""
    exit_status: int = 0
    on_loss: str = "catch"
    obeys_term: bool = True
    is_unkillable: bool = False
    has_grandchild: bool = False
    early_exit_step: int = -1
    hang_step: int = -1
    late_step: int = -1
    late_s: float = 0.0
    late_reports: bool = False
    desync_step: int = -1
    deadlock_step: int = -1
