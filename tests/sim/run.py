"""Run seeded schedules: ``python -m tests.sim.run --schedules 500 --seed 1 --workers 2``.

A schedule that breaks a promise prints its seed and how to run it again::

    python -m tests.sim.run --replay SEED [--hosts H]

which prints the schedule, everything that happened, and the violation.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter

from jlaunch.core.agent import AgentMachine
from jlaunch.core.errors import JlaunchError
from jlaunch.core.job import JobMachine
from tests.sim.faults import install
from tests.sim.schedule import Schedule, draw
from tests.sim.truth import Violation
from tests.sim.world import World

BUDGET_S = 200.0
"""Virtual time in which a job must come to its end once the faults are off."""


def simulate(
    schedule: Schedule,
    *,
    job_class: type[JobMachine] = JobMachine,
    agent_class: type[AgentMachine] = AgentMachine,
    log: list[str] | None = None,
) -> World:
    """Safety, then liveness; raises Violation (or a machine's own assertion)."""
    world = World(schedule.spec, schedule.seed, schedule.plan, job_class=job_class, agent_class=agent_class)
    world.log = log
    install(schedule, world)
    supervisor = world.supervisor
    supervisor.start()
    world.run(schedule.heal_at_s + BUDGET_S, lambda: supervisor.is_over)
    if not supervisor.is_over:
        raise Violation(f"no end within {BUDGET_S:g} s after the faults: {supervisor.machine.state.name}")
    _check_end(schedule, world)
    return world


def _check_end(schedule: Schedule, world: World) -> None:
    """The right exit code, where there is only one; nothing left behind; a silent machine."""
    end = world.supervisor.end
    if end is not None and schedule.expected and end.code not in schedule.expected:
        raise Violation(f"expected exit {schedule.expected}, got {end.code}: {end.cause}")
    if end is not None and schedule.kind == "benign" and world.truth.last_epoch != 1:
        raise Violation("a benign schedule led to a restart")
    timeouts = schedule.spec.timeouts
    is_quiet = not any(process.is_alive for process in world.processes())
    if not is_quiet:
        begin = max(world.now, schedule.heal_at_s)
        world.run(begin + 2 * (timeouts.lease_s + timeouts.grace_s) + 10.0)
    world.truth.check_nothing_left()


def replay(seed: int, hosts: int | None) -> int:
    """Run one seed and tell all of it."""
    schedule = draw(seed, hosts)
    log: list[str] = []
    print(schedule)
    try:
        world = simulate(schedule, log=log)
    except (AssertionError, JlaunchError):
        print("\n".join(log))
        raise
    print("\n".join(log))
    print(f"fine: {world.supervisor.end}")
    return 0


def _run_one(job: tuple[int, int | None]) -> tuple[int, int | None, str, str, int]:
    seed, hosts = job
    schedule = draw(seed, hosts)
    try:
        world = simulate(schedule)
    except (AssertionError, JlaunchError) as error:
        return seed, hosts, schedule.kind, f"{type(error).__name__}: {error}", 0
    except Exception as error:
        raise RuntimeError(f"seed {seed}, hosts {hosts}") from error
    return seed, hosts, schedule.kind, "", world.steps


def run_many(seeds: range, hosts: int | None, workers: int) -> list[str]:
    """Run a schedule for each seed; the failures, as lines to print."""
    jobs = [(seed, hosts) for seed in seeds]
    if workers <= 1:
        results = [_run_one(job) for job in jobs]
    else:
        with multiprocessing.get_context("spawn").Pool(workers) as pool:
            results = pool.map(_run_one, jobs, chunksize=max(1, len(jobs) // (workers * 16)))
    kinds = Counter(kind for _, _, kind, _, _ in results)
    steps = sum(result[-1] for result in results)
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    print(f"{len(jobs)} schedules ({told}), {steps} steps")
    return [
        f"python -m tests.sim.run --replay {seed}{f' --hosts {hosts}' if hosts else ''}: {error}"
        for seed, hosts, _, error, _ in results
        if error
    ]


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.run", description=__doc__)
    parser.add_argument("--schedules", type=int, default=500, help="schedules over 2 to 16 hosts")
    parser.add_argument("--big", type=int, default=0, help="schedules over 300 hosts")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--replay", type=int, default=None, metavar="SEED")
    parser.add_argument("--hosts", type=int, default=None)
    options = parser.parse_args(arguments)
    if options.replay is not None:
        return replay(options.replay, options.hosts)
    began = time.monotonic()
    seeds = range(options.seed, options.seed + options.schedules)
    failures = run_many(seeds, options.hosts, options.workers)
    if options.big:
        failures += run_many(range(options.seed, options.seed + options.big), 300, options.workers)
    for failure in failures:
        print(failure, file=sys.stderr)
    print(f"{len(failures)} failures in {time.monotonic() - began:.1f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
