"""The job machine: what the supervisor decides.

How it is driven (one thread, one owner; the supervisor's loop):

1. ``machine = JobMachine(spec, rng=random.Random())``, then ``handle(JobStarted(), now)``.
2. Everything that happens is one event: ``handle(event, now)`` returns actions, to be carried out in
   the order of the list before the next event is handled. ``now`` is monotonic seconds and never
   goes back. What an agent sent is wrapped: ``AgentHeard(host, incarnation, event)`` with the
   envelope's host and incarnation; output and acknowledgements of an agent are fed as
   ``AgentHeard(..., HeartbeatArrived(host=...))``, since they are signs of life. The end of an
   agent's process is ``AgentExited``; an action that failed is ``ActionFailed``.
3. After each step the driver arms one timer for ``next_deadline()`` (None: no timer) and, when it
   fires, calls ``wake(now)``, which is ``handle(DeadlineReached(), now)``. Too early or too late is
   harmless.
4. Actions: ``StartAgent`` starts an agent (answered by an ``AgentReady`` that it sends, or by
   ``AgentExited`` or ``ActionFailed(action="StartAgent", host=...)``). An ``Order`` goes to the agent
   of its ``host`` over a link that keeps the order of messages; an order for a host without a
   connection is dropped by the shell. ``Say`` is a line for people, ``RecordVerdict`` a line of the
   event log. ``EndJob`` comes once, last, after ``EndAgent`` for every agent: pass on the output that
   is still under way, wait for the agents' processes (bounded), exit with the code. After it the
   machine returns nothing, whatever it is fed.
5. ``snapshot(now)`` at any time; ``check()`` asserts the invariants (tests call it after each step).

Rules of this file. Here is the life of the job: agents, epochs, the end. What happens to ranks within
an epoch is ``core.epoch``, who is heard is ``core.fleet``, who cannot be reached ``core.ghosts``. All times
inside are of the job's own clock, which stands still in an announced pause (``core.pause``).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from jlaunch.core import job_table as step
from jlaunch.core.actions import Action, EndAgent, EndJob, Say
from jlaunch.core.budget import RestartBudget
from jlaunch.core.cause import CauseKind, ended_text, signal_text
from jlaunch.core.epoch import Epoch
from jlaunch.core.events import (
    ActionFailed,
    AgentExited,
    AgentHeard,
    DeadlineReached,
    Event,
    HeartbeatArrived,
    HostPaused,
    HostSwept,
    JobEvent,
    JobStarted,
    LeaseLapsed,
    PauseRequested,
    RankEvent,
    ResumeRequested,
    StopRequested,
    VerdictWritten,
)
from jlaunch.core.fleet import Fleet, HostChanged, HostGone, Turn
from jlaunch.core.ghosts import Ghosts
from jlaunch.core.job_table import TERMINAL, TRANSITIONS, JobState
from jlaunch.core.job_view import show
from jlaunch.core.machine import Machine, Timers
from jlaunch.core.pause import Pause
from jlaunch.core.policy import may_restart, refuse_unsupported
from jlaunch.core.process import KILL_BOUND_S
from jlaunch.core.snapshot import Snapshot
from jlaunch.core.spec import JobSpec, Policy

if TYPE_CHECKING:
    import random

SLEPT_S = 0.5
"""A timer that fires so late says that this process was stopped, or its machine asleep."""
HAPPENINGS_MAX = 32
"""Lines of the recent past in a snapshot."""

_S = JobState
_BACKOFF, _GIVE_UP = "backoff", "give up"


class JobMachine(Machine[JobState]):
    """A job, from its first agent to its exit code."""

    def __init__(self, spec: JobSpec, *, rng: random.Random) -> None:
        """Refuses, with ConfigError, a policy that this version does not carry out."""
        refuse_unsupported(spec.policy)
        super().__init__(f"job {spec.job}", JobState.PREPARING, TRANSITIONS, 0.0)
        self.spec = spec
        self.fleet = Fleet(spec)
        self.budget = RestartBudget(spec.max_restarts, spec.timeouts.restart_backoff_s, rng=rng)
        self.dropped = 0
        self.exit_code: int | None = None
        self.cause = ""
        self.started_at = 0.0
        self.happenings: deque[tuple[float, str]] = deque(maxlen=HAPPENINGS_MAX)
        self.restarts = 0
        self._stop_signals = 0
        self._ghosts = Ghosts(self)
        self._is_last = False
        self._verdicts = itertools.count(1)
        self.timers = Timers()
        self._out: list[Action] = []
        self._now = 0.0
        self.pause = Pause(self)
        self.epoch = self._new_epoch(1)

    # ---- doors -----------------------------------------------------------------------------------

    def handle(self, event: JobEvent, now: float) -> list[Action]:
        """Take note of what happened at ``now``; say what to do about it."""
        if self.state in TERMINAL:
            self.dropped += 1
            return []
        self._now = self.pause.read(now)
        _HANDLERS[type(event)](self, event)
        self._settle()
        out, self._out = self._out, []
        self.happenings += ((self._now, action.text) for action in out if isinstance(action, Say))
        return out

    def wake(self, now: float) -> list[Action]:
        """The deadline has come."""
        return self.handle(DeadlineReached(), now)

    def next_deadline(self) -> float | None:
        """When to be woken at the latest, in the clock of ``now``; None for never."""
        return self.pause.comes_at(self._due_at())

    def _due_at(self) -> float | None:
        moments = (self.timers.next(), self.fleet.timers.next(), self.epoch.next_deadline())
        return min((at for at in moments if at is not None), default=None)

    def snapshot(self, now: float) -> Snapshot:
        """The state for people."""
        return show(self, self.pause.read(now))

    def check(self) -> None:
        """Assert what must always hold."""
        self.epoch.check()
        if self.state in (_S.BACKOFF, _S.SUCCEEDED, _S.STOPPED):
            assert self.epoch.is_over, f"{self.name} is {self.state.name}, and ranks of it live"
        if self.state is _S.BACKOFF:
            assert not self.epoch.unkillable
        if self.state in TERMINAL:
            assert self.state is not _S.SUCCEEDED or not self.epoch.inquest
            assert self.exit_code is not None
            assert self.next_deadline() is None
            assert (self.exit_code == 0) == (self.state is _S.SUCCEEDED)
        if self.state is _S.DRAINING:
            assert all(rank.is_stopping or not rank.can_be_stopped for rank in self.epoch.ranks)

    # ---- what happens ----------------------------------------------------------------------------

    def _on_started(self, event: JobStarted) -> None:
        self._since = self.started_at = self._now
        self.epoch = self._new_epoch(1)
        self._out += self.fleet.start(self._now)

    def _on_heard(self, heard: AgentHeard) -> None:
        is_admitted, turns = self.fleet.admit(heard, self._now)
        if not is_admitted:
            self.dropped += 1
            return
        self._take_turns(turns)
        event = heard.event
        if isinstance(event, HeartbeatArrived):
            self.fleet.beat(heard.host, event, self._now)
            self._out += self.epoch.note_waits(heard.host, event.waits, self._now)
        elif isinstance(event, RankEvent):
            if self._has_ranks and self.epoch.admits(event, heard.host):
                self._out += self.epoch.handle(event, self._now)
            else:
                self.dropped += 1
        elif isinstance(event, VerdictWritten):
            self._out += self.epoch.verdict_written(event.verdict, self._now)
        elif isinstance(event, HostPaused):
            self._out += self.pause.host_paused(heard.host)
        elif isinstance(event, LeaseLapsed):
            why = f"its agent heard nothing from here for {self.spec.timeouts.lease_s:g} s and ends its ranks"
            self._take_turns([self.fleet.lose(heard.host, why, self._now)], CauseKind.CONTROL_LOST)
        elif isinstance(event, ActionFailed):
            self._on_action_failed(event)

    def _on_agent_exited(self, event: AgentExited) -> None:
        why = f"its agent {'ended' if event.status is None else ended_text(event.status)}"
        self._take_turns(self.fleet.exited(event.host, event.incarnation, why, self._now))

    def _hold(self, event: PauseRequested) -> None:
        self._out += self.pause.request()

    def _go_on(self, event: ResumeRequested | None = None) -> None:
        self._out += self.pause.resume()
        self._now = self.pause.now

    def _on_swept(self, event: HostSwept) -> None:
        if self.fleet.is_lost(event.host):
            self._ghosts.write_off(event.host, self._now)

    def _on_action_failed(self, event: ActionFailed) -> None:
        if event.action == "StartAgent" and event.host is not None:
            self._take_turns(self.fleet.exited(event.host, "", event.error, self._now))
            return
        where = "" if event.host is None else f" on {self.fleet.name(event.host)}"
        self._blame(CauseKind.INTERNAL, f"{event.action}{where} failed: {event.error}")

    def _on_stop_requested(self, event: StopRequested) -> None:
        self._stop_signals += 1
        if self._stop_signals == 1:
            if self.state is _S.BACKOFF:
                # What felled the last epoch was about to be mended.
                self.epoch.forgive()
            self._blame(CauseKind.STOPPED, f"stopped by {signal_text(event.signal)}", status=-event.signal)
        elif self.state is _S.DRAINING:
            self._out.append(Say(level="note", text="stopping at once"))
            self._out += self.epoch.drain(0.0, self._now)
            self.timers.set(_GIVE_UP, self._now + 2 * KILL_BOUND_S)

    def _on_deadline(self, event: DeadlineReached) -> None:
        if self.pause.is_on:
            self._out += self.pause.wake()
            return
        due_at = self._due_at()
        if due_at is not None and self._now > due_at + SLEPT_S:
            self._note_sleep(self._now - due_at)
        while (name := self.timers.pop_due(self._now)) is not None:
            if name == _BACKOFF:
                self._start_again()
            elif name == _GIVE_UP:
                self._give_up()
            else:
                assert isinstance(name, tuple)
                self._ghosts.write_off(name[1], self._now)
        if self.state not in TERMINAL:
            self._out += self.epoch.wake(self._now)
            actions, turns = self.fleet.wake(self._now, self.epoch.living)
            self._out += actions
            self._take_turns(turns)

    def _note_sleep(self, slept_s: float) -> None:
        """We were silent: what the others said in the meantime is still to be read."""
        self.fleet.forgive(slept_s, self._now)
        self.epoch.beginning.be_patient(self._now)
        if self.timers.is_set(_GIVE_UP):
            self.timers.set(_GIVE_UP, self._now + KILL_BOUND_S)

    # ---- hosts -----------------------------------------------------------------------------------

    def _take_turns(self, turns: list[Turn], kind: CauseKind | None = None) -> None:
        for turn in turns:
            if isinstance(turn, HostChanged):
                self._note_host(turn)
            else:
                self._lose_host(turn, kind)

    def _note_host(self, turn: HostChanged) -> None:
        silence_s = self.fleet.machines[turn.host].silence_s(self._now)
        news = "is ready" if turn.is_heard else f"has not been heard for {silence_s:.1f} s"
        level = "info" if turn.is_heard else "note"
        self._out.append(Say(level=level, text=f"host {self.fleet.name(turn.host)} {news}"))
        self._out += self.epoch.host_changed(turn.host, turn.is_heard, self._now)

    def _lose_host(self, gone: HostGone, kind: CauseKind | None) -> None:
        """A host was given up. On this machine it is control that is lost, the host is here."""
        host = gone.host
        if kind is None:
            is_local = self.spec.hosts[host].is_local
            kind = CauseKind.CONTROL_LOST if is_local else CauseKind.HOST_LOST
        # It may hear us although we do not hear it.
        self._out += [EndAgent(host=host), *self.pause.host_paused(host)]
        if self.state is _S.PREPARING:
            self._blame(kind, f"host {self.fleet.name(host)} lost: {gone.why}")
            # Whatever the policy: without this host the job cannot begin.
            self.epoch.trouble = True
            return
        self._out += self.epoch.host_lost(host, kind, gone.why, self._now)
        self._ghosts.add(gone, self._now)

    def _give_up(self) -> None:
        """The stop of all ranks was ordered long ago, and some host has not confirmed it."""
        for host in self.fleet.used:
            machine = self.fleet.machines[host]
            if host in self._ghosts or not self.epoch.living(host):
                continue
            if machine.is_ready:
                self._blame(CauseKind.INTERNAL, f"host {self.fleet.name(host)} does not end its ranks")
            if not self._will_start_again:
                self._take_turns([self.fleet.lose(host, "its ranks were to stop", self._now)])
        self.timers.set(_GIVE_UP, self._now + KILL_BOUND_S)

    # ---- flow ------------------------------------------------------------------------------------

    @property
    def _has_ranks(self) -> bool:
        return self.state in (_S.FORMING, _S.RUNNING, _S.DRAINING)

    @property
    def _will_start_again(self) -> bool:
        """Whether another epoch will follow this one, as far as is known now."""
        return (
            may_restart(self.spec.policy, self.epoch.inquest, has_unkillable=bool(self.epoch.unkillable))
            and not (self._stop_signals or self._is_last)
            and self.budget.has_left(self._healthy_s)
        )

    @property
    def _healthy_s(self) -> float:
        """How long the present epoch ran with all its ranks."""
        return 0.0 if self.epoch.up_at is None else self._now - self.epoch.up_at

    def _blame(self, kind: CauseKind, text: str, *, status: int | None = None) -> None:
        self._out += self.epoch.blame(kind, text, self._now, status=status)

    def _settle(self) -> None:
        """Let the job take the steps that follow from what was noted."""
        if self.epoch.trouble and self.state in (_S.PREPARING, _S.FORMING, _S.RUNNING):
            self._drain()
        if self.state is _S.PREPARING and self.fleet.is_complete and not self.pause.is_on:
            self._move(step.AgentsReady(), self._now)
            self._out += self.epoch.start()
        if self.state is _S.FORMING and self.epoch.rendezvous.is_open:
            self._move(step.GroupOpened(), self._now)
        if self._ghosts and not self._will_start_again:
            self._is_last = True
            self._ghosts.write_off_all(self._now)
        if self.state is _S.BACKOFF and self._stop_signals:
            self._end(step.StopCompleted())
        elif self._has_ranks and self.epoch.is_over:
            self._conclude()

    def _drain(self) -> None:
        self._go_on()
        was_preparing = self.state is _S.PREPARING
        self._move(step.EpochFailed(), self._now)
        self._out += self.epoch.drain(self.spec.timeouts.grace_s, self._now, is_unborn=was_preparing)
        self.timers.set(_GIVE_UP, self._now + self.spec.timeouts.grace_s + 2 * KILL_BOUND_S)

    def _conclude(self) -> None:
        """The epoch is over: what now?"""
        epoch = self.epoch
        for rank in epoch.unkillable:
            self._blame(CauseKind.UNKILLABLE, f"{epoch.name(rank.rank)} (pid {rank.pid}) cannot be killed")
        root = epoch.inquest.root()
        if root is None:
            self._end(step.EpochEnded())
        elif self._will_start_again:
            self._restart()
        elif root.kind is CauseKind.STOPPED and self.state is _S.DRAINING:
            self._end(step.StopCompleted())
        else:
            self._end(step.JobFailed())

    def _restart(self) -> None:
        delay_s = self.budget.spend(self._healthy_s)
        assert delay_s is not None
        self._move(step.RestartDecided(), self._now)
        self.timers.clear()
        self.restarts += 1
        when = "now" if delay_s == 0 else f"in {delay_s:.1f} s"
        when += f" (restart {self.budget.spent} of {self.budget.max_restarts})"
        self._out.append(Say(level="note", text=f"{self.epoch.inquest.text()}; all ranks start again {when}"))
        self.timers.set(_BACKOFF, self._now + delay_s)
        if not delay_s:
            self._start_again()

    def _start_again(self) -> None:
        self.timers.cancel(_BACKOFF)
        self._move(step.BackoffOver(), self._now)
        self.epoch = self._new_epoch(self.epoch.number + 1)
        self._out += self.fleet.start(self._now)
        self._settle()

    def _new_epoch(self, number: int) -> Epoch:
        return Epoch(number, self.spec, self.fleet.machines, lambda: next(self._verdicts), self._now)

    def _end(self, how: Event) -> None:
        self._move(how, self._now)
        self.timers.clear()
        self.epoch.quiet()
        inquest = self.epoch.inquest
        self.exit_code, self.cause = inquest.exit_code(), inquest.text()
        is_used_up = self.spec.policy is Policy.RESTART and not self.budget.has_left(self._healthy_s)
        if self.exit_code and is_used_up and not self._stop_signals:
            self.cause += f"; its restarts ({self.budget.max_restarts}) are used up"
        self._out += self.fleet.dismiss()
        tails = self.epoch.tails(everyone=is_used_up) if self.exit_code else {}
        self._out.append(EndJob(code=self.exit_code, cause=self.cause, tails=tails))


_HANDLERS: dict[type[Event], Callable[..., None]] = {
    JobStarted: JobMachine._on_started,
    AgentHeard: JobMachine._on_heard,
    AgentExited: JobMachine._on_agent_exited,
    HostSwept: JobMachine._on_swept,
    ActionFailed: JobMachine._on_action_failed,
    StopRequested: JobMachine._on_stop_requested,
    PauseRequested: JobMachine._hold,
    ResumeRequested: JobMachine._go_on,
    DeadlineReached: JobMachine._on_deadline,
}
