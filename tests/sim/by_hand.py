"""Schedules written by hand, for named scenarios."""

from __future__ import annotations

import math

from jlaunch.core.actions import EndJob
from jlaunch.core.spec import HostSpec, JobSpec, Policy, Timeouts
from tests.sim.plan import RankPlan
from tests.sim.schedule import TIMEOUTS, Schedule
from tests.sim.world import World


def schedule(
    policy: Policy,
    *faults: tuple[float, str, int, float],
    hosts: int = 3,
    per_host: int = 1,
    is_local: bool = False,
    plans: dict[tuple[int, int], RankPlan] | None = None,
    base: RankPlan | None = None,
    timeouts: Timeouts = TIMEOUTS,
    kind: str = "scenario",
    heal_at_s: float = 60.0,
) -> Schedule:
    """A schedule by hand."""
    spec = JobSpec(
        job="scenario",
        program=("train.py",),
        hosts=tuple(HostSpec(name=f"h{index}", is_local=is_local and index == 0) for index in range(hosts)),
        placement=tuple(index for index in range(hosts) for _ in range(per_host)),
        cwd="/",
        policy=policy,
        timeouts=timeouts,
        max_restarts=2,
    )
    return Schedule(
        seed=1,
        kind=kind,
        spec=spec,
        plans=plans or {},
        base=base or RankPlan(steps=6, compute_s=0.3),
        faults=list(faults),
        skews=(1.0,) * hosts,
        heal_at_s=heal_at_s,
    )


def end_of(world: World) -> EndJob:
    """How the job ended."""
    assert world.supervisor.end is not None
    return world.supervisor.end


def changed(**changes: object) -> RankPlan:
    """The usual plan with changes."""
    return RankPlan(**{"steps": 6, "compute_s": 0.3, **changes})  # type: ignore[arg-type]


WAITING = Timeouts(
    **{**{name: getattr(TIMEOUTS, name) for name in TIMEOUTS.__struct_fields__}, "max_pause_s": math.inf}
)
