"""The agent's loop: carries orders and facts to the agent machine and its deeds to this host.

It decides nothing. What it knows by itself is only how to leave: nothing that carries the job's token
may be alive, and what was said last must be on its way.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import zmq

from jlaunch.core.actions import (
    AskForStack,
    Deed,
    ExitAgent,
    ReadBlock,
    SendBeat,
    SendUp,
    SignalGroup,
    StartProcess,
    TellRank,
    WriteBlock,
)
from jlaunch.core.agent import AgentMachine
from jlaunch.core.contract import HostFiles
from jlaunch.core.events import AgentEvent, DeadlineReached, HeartbeatArrived, RankSampled
from jlaunch.core.facts import (
    AgentInput,
    AgentStarted,
    DeedFailed,
    RankSpoke,
    SupervisorGone,
    SupervisorHeard,
)
from jlaunch.core.messages import AgentStart, Join, Output, OutputTaken, Stdin, StdinTaken
from jlaunch.core.spec import StdinMode
from jlaunch.io import process
from jlaunch.io.clock import SystemClock
from jlaunch.io.control_block import HostBlock
from jlaunch.io.guardian_process import GuardianProcess
from jlaunch.io.jobs import HostDirectory, remove_tree
from jlaunch.io.link import AgentLink, KeyPair, RanksLink
from jlaunch.io.platform import become_subreaper
from jlaunch.io.ports import free_ports
from jlaunch.runtime.driver import Driver, MachineDriver
from jlaunch.runtime.environment import backend_files, rank_environment
from jlaunch.runtime.local_ranks import LocalRanks
from jlaunch.runtime.pump import OutputPump
from jlaunch.runtime.stacks import Stacks
from jlaunch.runtime.stdin import StdinFan

LEAVE_LOOK_S = 0.02
LEAVE_S = 5.0
"""At the end, what left its rank's group is ended by force; within this bound it is confirmed gone."""


class AgentLoop:
    """One host's part of one job."""

    def __init__(self, start: AgentStart, directory: HostDirectory, guardian: GuardianProcess) -> None:
        self._spec = start.spec
        self._host = start.host
        self._directory = directory
        self._guardian = guardian
        self._environment = dict(os.environ)
        self._routes: dict[tuple[int, int], bytes] = {}
        self._epochs: list[int] = []
        self._is_leaving = False
        self._is_alone = False
        self._code = 0
        self._driver = Driver(SystemClock())
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._link = AgentLink(
            self._context,
            KeyPair(start.agent_public_key, start.agent_secret_key),
            server_public_key=start.server_public_key,
            host=start.host,
        )
        self._machine: MachineDriver[AgentInput, Deed] = MachineDriver(
            self._driver,
            AgentMachine(start.spec, start.host, incarnation=self._link.incarnation, pid=os.getpid()),
            self._perform,
            deadline_event=DeadlineReached,
        )
        self._host_block = HostBlock.create(
            self._path(HostFiles.HOST_BLOCK),
            lease_s=start.spec.timeouts.lease_s,
            grace_s=start.spec.timeouts.grace_s,
        )
        self._pump = OutputPump(self._driver, self._send)
        self._stdin = StdinFan(self._driver, self._stdin_readers(), lambda: self._send(StdinTaken()))
        # What is registered first is served first: deaths before everything else.
        self._ranks = LocalRanks(
            self._driver,
            self._host_block,
            job=start.spec.job,
            world_size=start.spec.world_size,
            host_dir=directory.path,
            pump=self._pump,
            stdin=self._stdin,
            guardian=guardian,
            feed=self._machine.feed,
        )
        self._stacks = Stacks(self._driver, directory.path, holder=self._ranks.holder, send=self._send)
        self._deeds: dict[type[Deed], Callable[[Any], None]] = {
            WriteBlock: self._ranks.write_block,
            SignalGroup: self._ranks.signal,
            SendUp: lambda deed: self._send(deed.event),
            TellRank: self._tell_rank,
            ReadBlock: self._read_block,
            SendBeat: self._send_beat,
            AskForStack: self._stacks.ask,
            StartProcess: self._start_process,
            ExitAgent: self._leave,
        }
        self._open_sockets(start.endpoint)

    def _open_sockets(self, endpoint: str) -> None:
        self._driver.on_signals((signal.SIGCHLD,), lambda _: self._reap())
        self._driver.on_signals((signal.SIGTERM,), lambda _: self._end_alone())
        self._driver.watch(self._link.socket, self._receive)
        self._ranks_link = RanksLink(self._context)
        self._ranks_link.bind(self._path(HostFiles.RANKS_SOCKET))
        self._driver.watch(self._ranks_link.socket, self._receive_from_ranks)
        self._driver.watch(0, self._supervisor_gone)
        self._link.connect(endpoint)

    def run(self) -> int:
        """Serve until the machine says that it is over; returns the exit code."""
        self._machine.feed(AgentStarted())
        # While the supervisor takes that in, and before it can have asked for a rank.
        become_subreaper()
        self._driver.run()
        self._close()
        return self._code

    # ---- facts in --------------------------------------------------------------------------------

    def _receive(self) -> None:
        for message in self._link.receive():
            body = message.body
            if isinstance(body, OutputTaken):
                self._pump.taken(body.size_bytes)
                self._machine.feed(SupervisorHeard())
            elif isinstance(body, Stdin):
                self._stdin.put(body.data)
                self._machine.feed(SupervisorHeard())
            else:
                self._machine.feed(body)

    def _receive_from_ranks(self) -> None:
        for route, message in self._ranks_link.receive():
            body = message.body
            if isinstance(body, Join):
                self._routes[(body.rank, body.epoch)] = route
            self._ranks.catch_up(body.rank, body.epoch)
            self._machine.feed(RankSpoke(body=body))

    def _reap(self) -> None:
        if self._guardian.pid in self._ranks.reap() and not self._is_leaving:
            self._guardian.replace()

    def _supervisor_gone(self) -> None:
        """The pipe from the supervisor has ended: nobody listens any more."""
        self._pump.discard()
        self._end_alone()

    def _end_alone(self) -> None:
        """End as if the supervisor were gone; also when somebody else asks us to, with SIGTERM.

        Then what happens to the ranks is no news for the supervisor to judge: it has lost control of them.
        """
        self._is_alone = True
        self._driver.unwatch(0)
        self._machine.feed(SupervisorGone())

    # ---- deeds out -------------------------------------------------------------------------------

    def _perform(self, deed: Deed) -> None:
        try:
            self._deeds[type(deed)](deed)
        except OSError as error:
            rank = getattr(deed, "rank", None)
            self._machine.feed(DeedFailed(deed=type(deed).__name__, error=str(error), rank=rank))

    def _tell_rank(self, deed: TellRank) -> None:
        route = self._routes.get((deed.rank, deed.order.epoch))
        if route is not None:
            self._ranks_link.send(route, deed.order)

    def _read_block(self, deed: ReadBlock) -> None:
        sample = self._ranks.sample(deed.rank, deed.epoch)
        if sample is not None:
            self._send(RankSampled(rank=deed.rank, epoch=deed.epoch, sample=sample))

    def _send_beat(self, deed: SendBeat) -> None:
        self._host_block.beat()
        if not deed.is_quiet:
            self._send(HeartbeatArrived(host=self._host, beat=deed.beat, waits=self._ranks.waits()))

    def _start_process(self, deed: StartProcess) -> None:
        self._prepare_epoch(deed.epoch)
        self._stacks.prepare(deed.rank, deed.epoch)
        environment = rank_environment(
            self._environment,
            self._spec,
            host=self._host,
            host_dir=self._directory.path,
            rank=deed.rank,
            epoch=deed.epoch,
            restart_count=deed.restart_count,
        )
        has_stdin = self._spec.stdin is StdinMode.ALL or (
            self._spec.stdin is StdinMode.RANK0 and deed.rank == 0
        )
        self._ranks.start(deed, self._spec.program, environment, cwd=self._spec.cwd, stdin=has_stdin)

    def _prepare_epoch(self, epoch: int) -> None:
        """Make what the ranks of a new epoch find in the host directory; remove what old ones left."""
        if epoch in self._epochs:
            return
        for old in [old for old in self._epochs if not self._ranks.has_epoch(old)]:
            remove_tree(self._path(HostFiles.soft_dir(old)))
            self._epochs.remove(old)
        self._epochs.append(epoch)
        os.mkdir(self._path(HostFiles.soft_dir(epoch)), 0o700)
        for name, content in backend_files(self._spec, epoch, free_ports).items():
            with open(self._path(name), "wb") as file:
                file.write(content)

    def _send(self, body: AgentEvent | Output | StdinTaken) -> None:
        if self._is_alone and not isinstance(body, Output):
            return
        self._link.send(body)
        if self._link.has_backlog:
            self._driver.watch_writable(self._link.socket, self._flush)

    def _flush(self) -> None:
        self._link.flush()
        if not self._link.has_backlog:
            self._driver.unwatch_writable(self._link.socket)

    def _stdin_readers(self) -> int:
        local = self._spec.ranks_of(self._host)
        if self._spec.stdin is StdinMode.ALL:
            return len(local)
        return int(self._spec.stdin is StdinMode.RANK0 and 0 in local)

    def _path(self, name: str) -> str:
        return os.path.join(self._directory.path, name)

    # ---- the end ---------------------------------------------------------------------------------

    def _leave(self, deed: ExitAgent) -> None:
        """Confirm that nothing of the job is alive on this host, then go."""
        self._is_leaving = True
        self._code = deed.code
        self._end_strays(self._driver.now() + LEAVE_S)

    def _end_strays(self, give_up_at: float) -> None:
        """End by force what left its rank's group, again and again until none is found."""
        strays = process.descendants(self._spec.job)
        process.signal_all(strays, signal.SIGKILL)
        if (strays or self._must_flush()) and self._driver.now() < give_up_at:
            self._driver.call_later(LEAVE_LOOK_S, lambda: self._end_strays(give_up_at))
        else:
            self._driver.stop()

    def _must_flush(self) -> bool:
        """Whether last words still wait for a supervisor that is there."""
        return self._link.has_backlog and not self._is_alone

    def _close(self) -> None:
        self._guardian.done()
        self._stacks.close()
        self._ranks.close()
        self._host_block.close()
        self._directory.remove()
        self._ranks_link.close()
        self._link.close()
        self._context.term()
        self._driver.close()
