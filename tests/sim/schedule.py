"""Random schedules: a job, a plan for each of its processes, and faults from outside, from one seed.

Kinds of schedules: ``calm`` (nothing happens), ``benign`` (only what must not hurt: it has to end with 0
in its first epoch), ``single`` (one fault with one right exit code) and ``wild`` (anything).
"""

from __future__ import annotations

import math
import random
import signal
from dataclasses import dataclass, field
from typing import Any

import msgspec

from jlaunch.core.spec import HostSpec, JobSpec, Policy, Timeouts
from tests.sim.plan import RankPlan

HEAL_AT_S = 16.0
"""Faults off: from here on, the job must come to an end."""

TIMEOUTS = Timeouts(
    deadline_s=1.0,
    max_pause_s=3.0,
    straggler_timeout_s=6.0,
    host_timeout_s=3.0,
    restart_backoff_s=0.5,
    grace_s=1.5,
    start_timeout_s=8.0,
    lease_s=15.0,
)


@dataclass
class Schedule:
    """All of one run, drawn from its seed."""

    seed: int
    kind: str
    spec: JobSpec
    plans: dict[tuple[int, int], RankPlan] = field(default_factory=dict)
    base: RankPlan = field(default_factory=RankPlan)
    faults: list[tuple[float, str, int, float]] = field(default_factory=list)
    expected: tuple[int, ...] = ()
    skews: tuple[float, ...] = ()
    loss: float = 0.0
    heal_at_s: float = HEAL_AT_S

    def plan(self, rank: int, epoch: int) -> RankPlan:
        """The plan of one process; only those of the first epochs are special."""
        return self.plans.get((rank, epoch), self.base)

    def __str__(self) -> str:
        text = f"seed {self.seed}: {self.kind}, {len(self.spec.hosts)} hosts, {self.spec.world_size} ranks, "
        text += f"policy {self.spec.policy.value}"
        for at, kind, where, span_s in self.faults:
            text += f"\n  {at:6.2f} s: {kind} {where} for {span_s:.2f} s"
        for (rank, epoch), plan in sorted(self.plans.items()):
            odd = {key: value for key, value in vars(plan).items() if value != getattr(self.base, key)}
            text += f"\n  rank {rank}, epoch {epoch}: {odd}"
        return text


def draw(seed: int, hosts: int | None = None) -> Schedule:
    """The schedule of ``seed``; ``hosts`` fixes the number of hosts."""
    rng = random.Random(f"schedule {seed}")
    kind = rng.choices(("calm", "benign", "single", "wild"), (1, 3, 5, 11))[0]
    count = hosts if hosts is not None else rng.choice((2, 2, 2, 3, 3, 4, 4, 5, 6, 8, 12, 16))
    policy = rng.choice(
        (Policy.RAISE, Policy.RAISE, Policy.WAIT, Policy.STOP, Policy.RESTART, Policy.RESTART)
    )
    spec = _spec(rng, count, policy)
    schedule = Schedule(seed=seed, kind=kind, spec=spec)
    schedule.base = RankPlan(
        steps=rng.randint(2, 8),
        compute_s=rng.choice((0.05, 0.3, 0.8)),
        on_loss=rng.choice(("catch", "crash", "run on")),
        claims=rng.random() > 0.05,
    )
    schedule.skews = tuple(rng.uniform(0.997, 1.003) for _ in range(count))
    if kind != "calm":
        schedule.loss = rng.choice((0.0, 0.0, 0.05, 0.2))
    if kind == "benign":
        # The start timeout bounds the start, whatever the reason: here it must not be reached.
        patient = msgspec.structs.replace(spec.timeouts, start_timeout_s=60.0)
        schedule.spec = msgspec.structs.replace(spec, timeouts=patient)
        _add_benign(schedule, rng)
    elif kind == "single":
        _add_single(schedule, rng)
    elif kind == "wild":
        _add_wild(schedule, rng)
    return schedule


def _spec(rng: random.Random, count: int, policy: Policy) -> JobSpec:
    per_host = 1 if count > 50 else rng.choice((1, 1, 2, 2, 4) if count <= 4 else (1, 1, 2))
    has_local = rng.random() < 0.7
    hosts = tuple(HostSpec(name=f"h{index}", is_local=has_local and index == 0) for index in range(count))
    placement = tuple(index for index in range(count) for _ in range(per_host))
    timeouts = TIMEOUTS
    if policy is Policy.WAIT:
        values = {name: getattr(TIMEOUTS, name) for name in TIMEOUTS.__struct_fields__}
        timeouts = Timeouts(**{**values, "max_pause_s": math.inf})
    return JobSpec(
        job="sim",
        program=("train.py",),
        hosts=hosts,
        placement=placement,
        cwd="/",
        policy=policy,
        timeouts=timeouts,
        max_restarts=2,
    )


def _vary(schedule: Schedule, rank: int, epoch: int = 1, **changes: Any) -> None:
    before = schedule.plan(rank, epoch)
    schedule.plans[(rank, epoch)] = RankPlan(**{**vars(before), **changes})


def _moment(rng: random.Random) -> float:
    return rng.uniform(0.3, 9.0)


def _some_rank(schedule: Schedule, rng: random.Random) -> int:
    return rng.randrange(schedule.spec.world_size)


def _some_host(schedule: Schedule, rng: random.Random) -> int:
    return rng.randrange(len(schedule.spec.hosts))


# ---- what must not hurt --------------------------------------------------------------------------


def _add_benign(schedule: Schedule, rng: random.Random) -> None:
    timeouts = schedule.spec.timeouts
    for _ in range(rng.randint(1, 4)):
        what = rng.choice(
            ("pause", "late", "reporting", "control", "slow init", "freeze agent", "supervisor")
        )
        rank = _some_rank(schedule, rng)
        if what == "pause":
            span_s = rng.uniform(0.1, min(timeouts.max_pause_s, 8.0) - 0.7)
            schedule.faults.append((_moment(rng), "freeze rank", rank, span_s))
        elif what == "late":
            step = rng.randint(1, schedule.base.steps)
            _vary(schedule, rank, late_step=step, late_s=rng.uniform(1.0, 5.0))
        elif what == "reporting":
            step = rng.randint(1, schedule.base.steps)
            _vary(schedule, rank, late_step=step, late_s=rng.uniform(6.0, 20.0), late_reports=True)
        elif what == "control":
            # The control network is away, the data network is well.
            kind = rng.choice(("cut", "cut up", "cut down"))
            host = _some_host(schedule, rng)
            schedule.faults.append((_moment(rng), kind, host, rng.uniform(0.5, 6.0)))
        elif what == "slow init":
            _vary(schedule, rank, init_delay_s=rng.uniform(0.5, 5.0))
        elif what == "freeze agent":
            schedule.faults.append(
                (_moment(rng), "freeze agent", _some_host(schedule, rng), rng.uniform(0.2, 5.0))
            )
        else:
            schedule.faults.append((_moment(rng), "freeze supervisor", 0, rng.uniform(0.2, 5.0)))
    _keep_apart(schedule)
    schedule.expected = (0,)


def _keep_apart(schedule: Schedule) -> None:
    """Benign means one thing at a time per rank: two pauses that meet would be one long one."""
    free_at = 0.0
    apart = []
    for at, kind, where, span_s in sorted(schedule.faults):
        begin = max(at, free_at)
        apart.append((begin, kind, where, span_s))
        free_at = begin + span_s + 0.5
    schedule.faults = apart


# ---- one fault, one right answer -----------------------------------------------------------------


def _add_single(schedule: Schedule, rng: random.Random) -> None:
    """The fault comes in the first epoch; under ``restart`` the second one is well, and ends with 0."""
    schedule.loss = 0.0
    schedule.base.claims = True
    rank = _some_rank(schedule, rng)
    step = rng.randint(1, schedule.base.steps)
    what = rng.choice(
        ("exit", "crash", "kill", "hang", "pause", "early", "init", "spawn", "desync", "stop", "late init")
    )
    code = _single_stop(schedule, rng) if what == "stop" else _single_code(schedule, rng, what, rank, step)
    if what == "pause" and schedule.spec.policy is Policy.WAIT:
        code = 0
    if schedule.spec.policy is Policy.RESTART and what != "stop":
        code = 0
    schedule.expected = (1, 69) if what == "init" and code else (code,)


def _single_code(schedule: Schedule, rng: random.Random, what: str, rank: int, step: int) -> int:
    """Plan the fault; its exit code under a policy that does not start again."""
    status = rng.choice((1, 3, 42))
    plans: dict[str, tuple[int, dict[str, Any]]] = {
        "exit": (status, {"steps": step, "exit_status": status}),
        "crash": (139, {"steps": step, "exit_status": -11}),
        "kill": (137, {"steps": step, "exit_status": -9}),
        "hang": (74, {"hang_step": step}),
        "pause": (75, {"late_step": step, "late_s": 0.5}),
        "early": (73, {"early_exit_step": step}),
        "init": (1, {"init_error": "no device"}),
        "spawn": (69, {"spawn_error": "no such file"}),
        "desync": (76, _out_of_step(step)),
        "late init": (69, {"init_delay_s": 30.0}),
    }
    code, changes = plans[what]
    _vary(schedule, rank, **changes)
    if what == "pause":
        schedule.faults.append((0.6, "freeze rank in step", rank, float(step)))
    return code


def _out_of_step(step: int) -> dict[str, int]:
    """A desync in some, a deadlock in others; nothing is drawn, so that all other seeds stay what they are."""
    return {"deadlock_step" if step % 2 else "desync_step": step}


def _single_stop(schedule: Schedule, rng: random.Random) -> int:
    number = rng.choice((signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT))
    schedule.base.steps = 40
    schedule.base.compute_s = 0.8
    schedule.faults.append((_moment(rng), "stop", int(number), 0.0))
    return 128 + number


# ---- anything ------------------------------------------------------------------------------------


_WILD = (
    "freeze rank",
    "kill rank",
    "cut",
    "cut up",
    "cut down",
    "cut data",
    "cut all",
    "lossy",
    "kill agent",
    "freeze agent",
    "freeze host",
    "crash host",
    "freeze supervisor",
    "stop",
    "stop twice",
    "kill supervisor",
)
_WILD_WEIGHTS = (6, 6, 3, 2, 2, 2, 4, 2, 3, 3, 3, 3, 2, 2, 1, 1)


def _add_wild(schedule: Schedule, rng: random.Random) -> None:
    ranks = schedule.spec.world_size
    for _ in range(rng.randint(1, 5)):
        kind = rng.choices(_WILD, _WILD_WEIGHTS)[0]
        span_s = rng.choice((0.3, 1.0, 4.0, 8.0, 25.0)) * rng.uniform(0.5, 1.2)
        at = rng.uniform(0.0, 12.0)
        where = _some_rank(schedule, rng) if kind.endswith("rank") else _some_host(schedule, rng)
        if kind in ("stop", "stop twice"):
            where = int(rng.choice((signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)))
        schedule.faults.append((at, kind, where, span_s))
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        _vary_wildly(schedule, rng, rng.randrange(ranks), rng.choice((1, 1, 1, 2)))
    schedule.faults.sort()


def _vary_wildly(schedule: Schedule, rng: random.Random, rank: int, epoch: int) -> None:
    steps = schedule.base.steps
    changes: tuple[dict[str, Any], ...] = (
        {"steps": rng.randint(0, steps), "exit_status": rng.choice((0, 1, 3, -6, -11, -9))},
        {"hang_step": rng.randint(1, steps)},
        {"late_step": rng.randint(1, steps), "late_s": rng.uniform(1, 12)},
        {"early_exit_step": rng.randint(1, steps)},
        _out_of_step(rng.randint(1, steps)),
        {"init_delay_s": rng.uniform(0.5, 20.0)},
        {"init_error": "no device"},
        {"spawn_error": "no such file"},
        {"claims": False},
        {"obeys_term": False},
        {"has_grandchild": True},
        {"has_grandchild": True, "obeys_term": False},
        {"is_unkillable": True, "obeys_term": False},
        {"on_loss": rng.choice(("crash", "run on"))},
    )
    _vary(schedule, rank, epoch, **rng.choice(changes))
