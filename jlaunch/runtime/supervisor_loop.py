"""The supervisor's loop: carries events to the job machine and its actions to the world.

It decides nothing. What it knows by itself is only how to end: pass on the output that is still under
way, wait for the agents' processes within a bound, then leave with the machine's code.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterable

import msgspec
import zmq

from jlaunch.core.actions import (
    Action,
    EndJob,
    Order,
    RecordVerdict,
    SampleRanks,
    Say,
    SpawnRank,
    StartAgent,
    Suspend,
)
from jlaunch.core.contract import PROTOCOL_VERSION, SupervisorFiles
from jlaunch.core.events import (
    ActionFailed,
    AgentExited,
    AgentHeard,
    DeadlineReached,
    HeartbeatArrived,
    HostSwept,
    JobEvent,
    JobStarted,
    PauseRequested,
    RankSampled,
    RankSpawned,
    ResumeRequested,
    StopRequested,
)
from jlaunch.core.job import JobMachine
from jlaunch.core.messages import AgentStart, Output, OutputTaken, Stdin, StdinTaken, encode_agent_start
from jlaunch.core.replay import spec_record
from jlaunch.core.snapshot import encode_snapshot
from jlaunch.core.spec import JobSpec, StdinMode
from jlaunch.io.clock import SystemClock
from jlaunch.io.events_file import EventsFile
from jlaunch.io.link import SupervisorLink, new_keys
from jlaunch.io.local_agent import LocalAgent
from jlaunch.io.platform import suspend_self
from jlaunch.runtime.driver import Driver, MachineDriver
from jlaunch.runtime.local_agents import LocalAgents
from jlaunch.runtime.output import OutputView
from jlaunch.runtime.status_server import StatusServer
from jlaunch.runtime.stdin import StdinReader
from jlaunch.view.ending import ending_lines

SIGN_OF_LIFE_INTERVAL_S = 0.2
"""Output is a sign of life; a flood of it is told to the machine no more often than this."""

LAST_WORDS_S = 1.0
"""A terminal that takes nothing (Ctrl-S) is waited for so long before it gets its shell back all the same."""


class SupervisorLoop:
    """One job, from its first event to its exit code. The agents' processes are spawned already."""

    def __init__(
        self,
        spec: JobSpec,
        job_dir: str,
        agents: dict[int, LocalAgent],
        *,
        stop_signals: Iterable[signal.Signals],
        spawn_agent: Callable[[], LocalAgent],
        events_path: str | None,
    ) -> None:
        """Raises ConfigError for a file that cannot be written or a policy that is not carried out yet."""
        clock = SystemClock()
        self._spec = spec
        self._job_dir = job_dir
        self._driver = Driver(clock)
        self._was_stopped = False
        self._events = EventsFile(events_path, clock) if events_path is not None else None
        self._seed = random.SystemRandom().getrandbits(48)
        self._job = JobMachine(spec, rng=random.Random(self._seed))
        self._machine: MachineDriver[JobEvent, Action] = MachineDriver(
            self._driver,
            self._job,
            self._perform,
            deadline_event=DeadlineReached,
            tap=None if self._events is None else self._record_event,
        )
        self._stop_signals = stop_signals
        self._last_sign: dict[int, float] = {}
        self._epoch = 0
        self._spawned: set[int] = set()
        self._open_streams: set[tuple[int, int, int]] = set()
        self._ended: EndJob | None = None
        self._is_leaving = False
        self._open_sockets()
        self._agents = LocalAgents(
            self._driver,
            agents,
            spawn_agent=spawn_agent,
            start_frame=self._start_frame,
            listener=self,
            is_drained=lambda: not self._open_streams,
            job_dir=job_dir,
            grace_s=spec.timeouts.grace_s,
        )

    def _open_sockets(self) -> None:
        """Open all that the loop waits for; what matters most first, for it is served in this order."""
        spec, driver = self._spec, self._driver
        driver.on_signals(self._stop_signals, self._stop_requested)
        driver.on_signals((signal.SIGCHLD,), lambda _: self._agents.look())
        driver.on_signals((signal.SIGTSTP,), lambda _: self._feed(PauseRequested()))
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._server_keys = new_keys()
        self._link = SupervisorLink(self._context, self._server_keys)
        self._endpoint = self._link.bind(os.path.join(self._job_dir, SupervisorFiles.AGENTS_SOCKET))
        driver.watch(self._link.socket, self._receive)
        driver.watch(self._link.zap_socket, self._link.answer_zap)
        self._output = OutputView(
            driver,
            mode=spec.output,
            log_dir=spec.log_dir,
            acknowledge=self._acknowledge,
            reader_left=self._reader_left,
        )
        self._stdin = StdinReader(driver, 0, self._send_stdin)
        self._status = StatusServer(
            driver,
            self._context,
            os.path.join(self._job_dir, SupervisorFiles.STATUS_SOCKET),
            sample=self._sample_ranks,
            snapshot=lambda: encode_snapshot(self._job.snapshot(driver.now())),
        )

    def run(self) -> int:
        """Run the job; returns the exit code."""
        try:
            self._agents.watch_all()
            self._feed(JobStarted())
            self._driver.run()
        finally:
            self._close()
        assert self._ended is not None
        return self._ended.code

    def _close(self) -> None:
        self._status.close()
        self._output.close()
        self._link.close()
        self._context.term()
        self._driver.close()
        if self._events is not None:
            self._events.close()

    # ---- events in -------------------------------------------------------------------------------

    def _feed(self, event: JobEvent) -> None:
        self._machine.feed(event)

    def _record_event(self, event: JobEvent, now: float) -> None:
        """What the machine is given goes into the log first, so that the log can be replayed."""
        if isinstance(event, DeadlineReached):
            if self._events is not None:
                self._events.note_wake(now)
        elif isinstance(event, AgentHeard):
            self._record(event.event, now=now, agent=[event.host, event.incarnation])
        elif isinstance(event, JobStarted):
            self._record(event, now=now, job=self._spec.job, seed=self._seed, spec=spec_record(self._spec))
        else:
            self._record(event, now=now)

    def _record(self, record: msgspec.Struct, *, now: float | None = None, **more: object) -> None:
        if self._events is not None:
            failure = self._events.write(record, now=now, **more)
            if failure is not None:
                self._output.say(f"jlaunch: {failure}")

    def _stop_requested(self, number: int) -> None:
        if self._ended is not None:
            # Somebody does not want to wait for a terminal that takes nothing.
            self._driver.stop()
        self._was_stopped = True
        self._feed(StopRequested(signal=number))

    def _reader_left(self) -> None:
        """As for any program of a pipeline: who cannot write any more was sent SIGPIPE."""
        if self._ended is None:
            self._stop_requested(int(signal.SIGPIPE))

    def _receive(self) -> None:
        for message in self._link.receive():
            body = message.body
            if isinstance(body, Output):
                self._show(message.host, body)
            elif isinstance(body, StdinTaken):
                self._stdin.taken(message.host)
            else:
                self._note(body)
                self._feed(AgentHeard(host=message.host, incarnation=message.incarnation, event=body))
                continue
            if self._driver.now() - self._last_sign.get(message.host, 0.0) >= SIGN_OF_LIFE_INTERVAL_S:
                self._last_sign[message.host] = self._driver.now()
                alive = HeartbeatArrived(host=message.host)
                self._feed(AgentHeard(host=message.host, incarnation=message.incarnation, event=alive))
        self._send_backlog()

    def _note(self, event: msgspec.Struct) -> None:
        """What the shell itself must know of an event: where output and input go, who waits for a sample."""
        if isinstance(event, RankSpawned) and event.epoch == self._epoch:
            self._open_streams |= {(event.rank, event.epoch, stream) for stream in (1, 2)}
            self._spawned.add(event.rank)
            if len(self._spawned) == self._spec.world_size:
                self._stdin.release(self._stdin_hosts())
        elif isinstance(event, RankSampled):
            self._status.sampled()

    def _show(self, host: int, output: Output) -> None:
        self._output.show(host, output)
        if not output.data:
            self._open_streams.discard((output.rank, output.epoch, output.stream))
            self._leave_if_done()

    # ---- actions out -----------------------------------------------------------------------------

    def _perform(self, action: Action) -> None:
        try:
            self._carry_out(action)
        except OSError as error:
            host = action.host if isinstance(action, StartAgent | Order) else None
            rank = action.rank if isinstance(action, SpawnRank) else None
            name = type(action).__name__
            self._feed(ActionFailed(action=name, error=str(error), host=host, rank=rank))

    def _carry_out(self, action: Action) -> None:
        match action:
            case StartAgent(host=host):
                self._agents.start(host)
            case Say(level=level, text=text):
                if level != "info" or self._spec.verbose:
                    self._output.say(f"jlaunch: {text}")
            case Suspend():
                self._suspend()
            case RecordVerdict():
                self._record(action)
            case EndJob():
                self._record(action)
                self._end(action)
            case SpawnRank():
                self._begin_epoch(action.epoch)
                self._output.rank_started(action.rank, action.epoch, action.restart_count)
                self._link.send(action.host, action)
            case Order():
                self._link.send(action.host, action)  # type: ignore[arg-type]
        self._send_backlog()

    def _suspend(self) -> None:
        """Stop as any program does that is sent SIGTSTP, once our words are out; say so when continued."""

        def suspend() -> None:
            words_out.cancel()
            if self._job.pause.is_on:
                suspend_self()
                self._feed(ResumeRequested())

        words_out = self._driver.call_later(LAST_WORDS_S, suspend)
        self._output.when_idle(suspend)

    def _begin_epoch(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._epoch = epoch
            self._spawned.clear()
            self._stdin.hold()

    def _send_backlog(self) -> None:
        """Have the loop call ``flush`` for as long as something did not fit into the socket."""
        if self._link.has_backlog:
            self._driver.watch_writable(self._link.socket, self._flush)
        else:
            self._driver.unwatch_writable(self._link.socket)

    def _flush(self) -> None:
        self._link.flush()
        self._send_backlog()

    def _acknowledge(self, host: int, size_bytes: int) -> None:
        self._link.send(host, OutputTaken(size_bytes=size_bytes))

    def _send_stdin(self, host: int, data: bytes) -> None:
        self._link.send(host, Stdin(data=data))

    def _stdin_hosts(self) -> set[int]:
        if self._spec.stdin is StdinMode.NONE:
            return set()
        return {self._spec.placement[0]} if self._spec.stdin is StdinMode.RANK0 else set(self._spec.placement)

    def _sample_ranks(self) -> int:
        for host in range(len(self._spec.hosts)):
            ranks = tuple(rank for rank in self._spec.ranks_of(host) if rank in self._spawned)
            self._link.send(host, SampleRanks(host=host, epoch=self._epoch, ranks=ranks))
        return len({stream[:2] for stream in self._open_streams})

    # ---- the agents' processes -------------------------------------------------------------------

    def _start_frame(self, host: int) -> bytes:
        """What the agent of ``host`` reads first; with keys that are made for it, now."""
        keys = new_keys()
        self._link.admit(host, keys.public)
        return encode_agent_start(
            AgentStart(
                version=PROTOCOL_VERSION,
                spec=self._spec,
                host=host,
                job_dir=self._job_dir,
                endpoint=self._endpoint,
                server_public_key=self._server_keys.public,
                agent_public_key=keys.public,
                agent_secret_key=keys.secret,
            )
        )

    def agent_said(self, host: int, line: str) -> None:
        """An agent is silent unless something is wrong with it: show what it says."""
        self._output.say(f"jlaunch: agent of {self._spec.hosts[host].name}: {line}")

    def agent_exited(self, host: int, status: int | None) -> None:
        """The agent of ``host`` is gone, and what it had sent is read."""
        self._stdin.host_gone(host)
        self._open_streams = {s for s in self._open_streams if self._spec.placement[s[0]] != host}
        self._feed(AgentExited(host=host, status=status))

    def agent_swept(self, host: int, *, is_clean: bool) -> None:
        """Its guardian has ended as well, and removed the directory, or that was waited for in vain."""
        if is_clean:
            self._feed(HostSwept(host=host))
        self._leave_if_done()

    # ---- the end ---------------------------------------------------------------------------------

    def _end(self, action: EndJob) -> None:
        self._ended = action
        self._stdin.hold()
        self._agents.dismiss()
        self._leave_if_done()

    def _leave_if_done(self) -> None:
        """Leave once the agents are gone, and all that they had to say is out."""
        if self._ended is None or self._is_leaving or self._open_streams:
            return
        if not self._agents.have_ended:
            return
        self._is_leaving = True
        for line in ending_lines(self._ended.code, self._ended.cause, self._ended.tails):
            self._output.say(line)
        if self._was_stopped:
            # Who asked for the end gets it, also if nobody reads the output.
            self._driver.call_later(self._spec.timeouts.grace_s, self._driver.stop)
        self._output.finish(self._driver.stop)
