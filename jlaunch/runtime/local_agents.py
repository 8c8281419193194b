"""The processes of agents on this machine: their start over stdin, their last words, their end.

Rules of this file. A process is spawned before it is needed, waits for its start on stdin, and one that is
started again is a new process. Its exit is told when what it had sent was read, and "swept" once its guardian
has removed the host's directory: nothing of the job lives there then.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Protocol

from jlaunch.io.jobs import host_dir
from jlaunch.io.local_agent import LocalAgent
from jlaunch.runtime.driver import Driver

LAST_WORDS_S = 0.05
"""What a dead agent had sent is read for so long before its end is told: the kernel still holds it."""

SWEEP_LOOK_S = 0.05
SWEEP_S = 6.0
"""A dead agent's guardian is waited for, so that nothing of the job lives when we end: for the grace and
so long (its own bound for SIGKILL, and a second). Its work done, it removes the host's directory."""

AGENT_END_S = 8.0
"""An agent that was told to end, and whose ranks are gone, gets so long before it is killed: its own bound
for what left the ranks' groups (5 s), and time for its last words."""


class Listener(Protocol):
    """Who is told."""

    def agent_said(self, host: int, line: str) -> None:
        """A line of its stderr."""

    def agent_exited(self, host: int, status: int | None) -> None:
        """Its process is gone; ``status`` in ``subprocess`` form."""

    def agent_swept(self, host: int, *, is_clean: bool) -> None:
        """Its guardian is gone too, with the host's directory; or its time is up, and it is not."""


class LocalAgents:
    """One agent's process for each local host of a job.

    ``start_frame(host)`` makes what an agent is started with; ``is_drained`` tells whether all output of all
    ranks has ended, so that an agent has no last words.
    """

    def __init__(
        self,
        driver: Driver,
        agents: dict[int, LocalAgent],
        *,
        spawn_agent: Callable[[], LocalAgent],
        start_frame: Callable[[int], bytes],
        listener: Listener,
        is_drained: Callable[[], bool],
        job_dir: str,
        grace_s: float,
    ) -> None:
        self._driver = driver
        self._agents = agents
        self._spawn_agent = spawn_agent
        self._start_frame = start_frame
        self._listener = listener
        self._is_drained = is_drained
        self._job_dir = job_dir
        self._grace_s = grace_s
        self._is_dismissed = False
        self._started: set[int] = set()
        self._unsent: dict[int, memoryview] = {}
        self._unswept: set[int] = set()
        self._lines: dict[int, bytes] = {}

    @property
    def have_ended(self) -> bool:
        """Whether no process of them is left, nor anything that they guard."""
        return not self._unswept and all(agent.status is not None for agent in self._agents.values())

    def watch_all(self) -> None:
        """Listen to what they write to stderr."""
        for host in self._agents:
            self._watch(host)

    def start(self, host: int) -> None:
        """Give a spawned agent its start; one that was started before has ended, and is spawned again.

        Raises OSError if no process can be made.
        """
        if host in self._started:
            self._agents[host] = self._spawn_agent()
            self._watch(host)
        self._started.add(host)
        frame = self._start_frame(host)
        self._unsent[host] = memoryview(len(frame).to_bytes(4, "big") + frame)
        self._write_start(host)

    def look(self) -> None:
        """A child has changed: who is gone?"""
        for host, agent in self._agents.items():
            if agent.status is None and agent.has_exited():
                self._driver.unwatch_writable(agent.stdin)
                agent.let_go()
                delay_s = 0.0 if self._is_dismissed and self._is_drained() else LAST_WORDS_S
                self._driver.call_later(delay_s, functools.partial(self._exited, host, agent))

    def dismiss(self) -> None:
        """The job is over, and they have been told: those that do not end are killed, with a bound."""
        self._is_dismissed = True
        for host, agent in self._agents.items():
            if host not in self._started:
                agent.let_go()
        self._driver.call_later(AGENT_END_S, self._kill_all)

    def _kill_all(self) -> None:
        for host, agent in self._agents.items():
            if not agent.has_exited():
                self._listener.agent_said(host, "it did not end, and is killed")
                agent.kill()

    def _write_start(self, host: int) -> None:
        """Write on to a new agent's stdin; one that has died already is told of by its exit."""
        agent = self._agents[host]
        with contextlib.suppress(BlockingIOError):
            try:
                while self._unsent[host]:
                    self._unsent[host] = self._unsent[host][os.write(agent.stdin, self._unsent[host]) :]
            except BrokenPipeError:
                self._unsent[host] = memoryview(b"")
        if self._unsent[host]:
            self._driver.watch_writable(agent.stdin, functools.partial(self._write_start, host))
        else:
            self._driver.unwatch_writable(agent.stdin)

    def _watch(self, host: int) -> None:
        self._lines[host] = b""
        self._driver.watch(self._agents[host].stderr, functools.partial(self._says, host))

    def _says(self, host: int) -> None:
        fd = self._agents[host].stderr
        data = os.read(fd, 65536)
        *lines, rest = (self._lines[host] + data).split(b"\n")
        if not data:
            self._driver.unwatch(fd)
            os.close(fd)
            lines, rest = [*lines, rest] if rest else lines, b""
        for line in lines:
            self._listener.agent_said(host, line.decode(errors="replace"))
        self._lines[host] = rest

    def _exited(self, host: int, agent: LocalAgent) -> None:
        self._unswept.add(host)
        self._listener.agent_exited(host, agent.status)
        self._look_whether_swept(host, self._driver.now() + self._grace_s + SWEEP_S)

    def _look_whether_swept(self, host: int, give_up_at: float) -> None:
        """An agent that ended in good order has removed its directory; for any other its guardian does."""
        is_clean = not os.path.exists(host_dir(self._job_dir, host))
        if not is_clean and self._driver.now() < give_up_at:
            look = functools.partial(self._look_whether_swept, host, give_up_at)
            self._driver.call_later(SWEEP_LOOK_S, look)
            return
        self._unswept.discard(host)
        self._listener.agent_swept(host, is_clean=is_clean)
