"""The job machine's state as a snapshot, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jlaunch.core.events import Wait
from jlaunch.core.rank import RankMachine, RankState
from jlaunch.core.snapshot import Happening, HostView, RankView, Snapshot, WaitView

if TYPE_CHECKING:
    from jlaunch.core.epoch import Epoch
    from jlaunch.core.job import JobMachine


def show(job: JobMachine, now: float) -> Snapshot:
    """The state of ``job`` at ``now``."""
    epoch = job.epoch
    return Snapshot(
        job=job.spec.job,
        policy=job.spec.policy.value,
        epoch=epoch.number,
        phase=_phase(job),
        age_s=now - job.started_at,
        restarts=job.restarts,
        max_restarts=job.spec.max_restarts,
        hosts=tuple(_host(job, host, now) for host in job.fleet.used),
        ranks=tuple(_rank(epoch, rank, now) for rank in epoch.ranks),
        happenings=tuple(Happening(ago_s=now - at, text=text) for at, text in job.happenings),
        dropped=job.dropped,
        exit_code=job.exit_code,
        cause=job.cause,
    )


def _phase(job: JobMachine) -> str:
    """The state's word; a job whose ranks never enter ``init`` is not forming anything: it runs."""
    word: str = job.state.value
    rendezvous = job.epoch.rendezvous
    if word == "forming" and job.epoch.up_at is not None and not rendezvous.is_under_way:
        return "running"
    return word


def _host(job: JobMachine, host: int, now: float) -> HostView:
    machine = job.fleet.machines[host]
    return HostView(
        host=host,
        name=machine.spec.name,
        state=machine.state.value,
        heard_s=None if machine.heard_at is None else now - machine.heard_at,
        agent_pid=machine.agent_pid,
    )


def _rank(epoch: Epoch, rank: RankMachine, now: float) -> RankView:
    state, since = word_of(epoch, rank)
    reason = rank.loss.reason.word if rank.loss is not None and not rank.loss.clean else None
    return RankView(
        rank=rank.rank,
        host=rank.host,
        state=state,
        age_s=now - since,
        pid=rank.pid,
        wait=_wait(rank.wait, now - rank.wait_at) if rank.is_at_work and rank.wait is not None else None,
        report=rank.report,
        status=rank.status,
        reason=reason,
    )


def word_of(epoch: Epoch, rank: RankMachine) -> tuple[str, float]:
    """The state that people are shown, and since when."""
    if rank.is_gone and not rank.is_written_off:
        return "exited", rank.since
    if rank.loss is not None and not rank.loss.clean:
        return "lost", rank.since if rank.lost_at is None else rank.lost_at
    if rank.is_gone or rank.state is RankState.DYING:
        return "exited", rank.since
    if rank.state in (RankState.STOPPING, RankState.UNKILLABLE):
        return "stopping", rank.since
    if rank.paused_at is not None:
        return "paused", rank.paused_at
    if rank.state is RankState.SPAWNING:
        return "starting", rank.since
    held_up_since = epoch.waits.detector.late_since(rank.rank)
    if held_up_since is not None:
        return "late", held_up_since
    if rank.wait is not None:
        return "waiting", rank.wait_at - rank.wait.waited_s
    return "running", rank.since


def _wait(wait: Wait, since_told_s: float) -> WaitView:
    return WaitView(
        collective=wait.collective.word,
        seq=wait.seq,
        size_bytes=wait.size_bytes,
        waiting_for=wait.waiting_for,
        waited_s=wait.waited_s + since_told_s,
    )
