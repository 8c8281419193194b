"""Faults from outside, done to a world: what a schedule's lines mean."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.program import SimRank
from tests.sim.schedule import Schedule
from tests.sim.world import World


def install(schedule: Schedule, world: World) -> None:
    """Put the schedule's faults on the world's clock."""
    for host, skew in zip(world.hosts, schedule.skews, strict=True):
        host.skew = skew
        if not host.is_local:
            host.drop = schedule.loss
            host.repeat = schedule.loss / 2
            host.delay_s = 0.05 if schedule.loss else 0.002
    for plan in schedule.plans.values():
        if vars(plan) != vars(schedule.base):
            world.truth.faults.append((0.0, "plan", ()))
            break
    for at, kind, where, span_s in schedule.faults:
        world.at(at, _DO[kind], world, where, span_s)
    world.at(schedule.heal_at_s, heal, world)


def heal(world: World) -> None:
    """Phase two: every fault that can be taken back is taken back."""
    for host in world.hosts:
        host.cuts_up = host.cuts_down = host.is_data_cut = False
        host.drop = host.repeat = 0.0
        host.thaw()
        if host.agent is not None and host.agent.is_frozen:
            host.agent.thaw()
        for process in host.processes.values():
            process.thaw()
    world.data_changed()
    if world.supervisor.is_frozen:
        world.supervisor.thaw()


def _present(world: World, rank: int) -> SimRank | None:
    host = world.hosts[world.spec.placement[rank]]
    processes = [process for process in host.processes.values() if process.rank == rank and process.is_alive]
    return processes[-1] if processes else None


def _freeze_rank(world: World, rank: int, span_s: float) -> None:
    process = _present(world, rank)
    if process is not None:
        world.truth.note_fault("freeze rank", rank)
        process.freeze()
        world.after(span_s, process.thaw)


def _freeze_rank_in_step(world: World, rank: int, step: float) -> None:
    """Freeze for good when it has reached a step: exactly one pause past its limit."""
    process = _present(world, rank)
    if process is None or process.step < step:
        world.after(0.05, _freeze_rank_in_step, world, rank, step)
        return
    world.truth.note_fault("freeze rank", rank)
    process.freeze()


def _kill_rank(world: World, rank: int, span_s: float) -> None:
    process = _present(world, rank)
    if process is not None:
        world.truth.note_fault("kill rank", rank)
        if not process.plan.is_unkillable:
            process.kill()


def _cut(world: World, host: int, span_s: float, *, up: bool, down: bool, data: bool, kind: str) -> None:
    machine = world.hosts[host]
    world.truth.note_fault(kind, host)
    if not machine.is_local:
        machine.cuts_up = machine.cuts_up or up
        machine.cuts_down = machine.cuts_down or down
    machine.is_data_cut = machine.is_data_cut or data
    world.data_changed()
    world.after(span_s, _mend, world, host)


def _mend(world: World, host: int) -> None:
    machine = world.hosts[host]
    machine.cuts_up = machine.cuts_down = machine.is_data_cut = False
    world.data_changed()


def _lossy(world: World, host: int, span_s: float) -> None:
    world.truth.note_fault("lossy", host)
    if not world.hosts[host].is_local:
        world.hosts[host].drop = world.hosts[host].repeat = 0.4
        world.hosts[host].delay_s = 0.5


def _kill_agent(world: World, host: int, span_s: float) -> None:
    world.truth.note_fault("kill agent", host)
    world.hosts[host].kill_agent()


def _freeze_agent(world: World, host: int, span_s: float) -> None:
    agent = world.hosts[host].agent
    if agent is not None and not agent.is_gone and not agent.is_frozen:
        world.truth.note_fault("freeze agent", host)
        agent.freeze()
        world.after(span_s, agent.thaw)


def _freeze_host(world: World, host: int, span_s: float) -> None:
    world.truth.note_fault("freeze host", host)
    machine = world.hosts[host]
    if not machine.is_local:
        machine.freeze()
        world.after(span_s, machine.thaw)


def _crash_host(world: World, host: int, span_s: float) -> None:
    world.truth.note_fault("crash host", host)
    machine = world.hosts[host]
    if not machine.is_local:
        machine.crash()


def _freeze_supervisor(world: World, where: int, span_s: float) -> None:
    world.truth.note_fault("freeze supervisor")
    world.supervisor.freeze()
    world.after(span_s, world.supervisor.thaw)


def _stop(world: World, number: int, span_s: float) -> None:
    world.supervisor.stop(number)


def _stop_twice(world: World, number: int, span_s: float) -> None:
    world.supervisor.stop(number)
    world.after(0.4, world.supervisor.stop, number)


def _kill_supervisor(world: World, where: int, span_s: float) -> None:
    world.truth.note_fault("kill supervisor")
    world.supervisor.kill()


def _cut_control(world: World, host: int, span_s: float) -> None:
    _cut(world, host, span_s, up=True, down=True, data=False, kind="cut")


def _cut_up(world: World, host: int, span_s: float) -> None:
    _cut(world, host, span_s, up=True, down=False, data=False, kind="cut up")


def _cut_down(world: World, host: int, span_s: float) -> None:
    _cut(world, host, span_s, up=False, down=True, data=False, kind="cut down")


def _cut_data(world: World, host: int, span_s: float) -> None:
    _cut(world, host, span_s, up=False, down=False, data=True, kind="cut data")


def _cut_all(world: World, host: int, span_s: float) -> None:
    _cut(world, host, span_s, up=True, down=True, data=True, kind="cut")


_DO: dict[str, Callable[[World, int, float], None]] = {
    "freeze rank": _freeze_rank,
    "freeze rank in step": _freeze_rank_in_step,
    "kill rank": _kill_rank,
    "cut": _cut_control,
    "cut up": _cut_up,
    "cut down": _cut_down,
    "cut data": _cut_data,
    "cut all": _cut_all,
    "lossy": _lossy,
    "kill agent": _kill_agent,
    "freeze agent": _freeze_agent,
    "freeze host": _freeze_host,
    "crash host": _crash_host,
    "freeze supervisor": _freeze_supervisor,
    "stop": _stop,
    "stop twice": _stop_twice,
    "kill supervisor": _kill_supervisor,
}
