"""The head process: starts the agents, drives the job machine, shows the output, ends with its code.

The public face of this module, used by the command line, is ``run``. It makes the agents before it imports
what only the supervisor needs, so that both load side by side; the loop is in ``supervisor_loop``.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Mapping

import msgspec

from jlaunch.core.contract import PROTOCOL_VERSION, ExitCode
from jlaunch.core.errors import ConfigError, JlaunchError
from jlaunch.core.spec import JobSpec
from jlaunch.io.jobs import JobDirectory, JobRecord, remove_stale
from jlaunch.io.local_agent import CAN_FORK, LocalAgent
from jlaunch.runtime.environment import agent_environment, command_line

AGENT_ENTRY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "agent_entry.py")

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""A person, or the system, asks for the end of the job."""


def run(spec: JobSpec, *, python: str | None = None, events: str | None = None) -> int:
    """Run the job to its end and return the exit code (README, exit codes).

    ``spec.program`` is what the user typed; ``python`` is ``--python``, put in front of any program; without
    it a ``.py`` file runs under our own interpreter. ``events`` is the path of ``--events``.

    Raises ConfigError for what is the user's fault and was seen before any rank was started.
    """
    _ensure_standard_files()
    # A signal that comes before the loop is there to take it waits until then; nothing is left half made.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        return _run(spec, python, events)
    except JlaunchError:
        raise
    except Exception:
        # A bug of ours: say all we know, let the agents end the ranks, and leave with the code for it.
        traceback.print_exc()
        return ExitCode.INTERNAL
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def _run(spec: JobSpec, python: str | None, events: str | None) -> int:
    directory = JobDirectory.create(_record(spec))
    environment = agent_environment(os.environ, spec, _terminal_size())
    agents: dict[int, LocalAgent] = {}
    try:
        for host in range(len(spec.hosts)):
            agents[host] = _first_agent(environment)
        from jlaunch.runtime.supervisor_loop import SupervisorLoop

        loop = SupervisorLoop(
            msgspec.structs.replace(spec, program=command_line(spec.program, python)),
            directory.path,
            agents,
            stop_signals=STOP_SIGNALS,
            spawn_agent=lambda: LocalAgent.spawn(AGENT_ENTRY, environment),
            events_path=events,
        )
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        return loop.run()
    finally:
        for agent in agents.values():
            agent.let_go()
        directory.release()
        remove_stale()


def _first_agent(environment: Mapping[str, str]) -> LocalAgent:
    """An agent from a process that has nothing running yet: a copy, where that is possible."""
    try:
        if not CAN_FORK or threading.active_count() > 1:
            return LocalAgent.spawn(AGENT_ENTRY, environment)
        # What both need, once; what only the agent needs it imports while we import our own.
        import jlaunch.io.link
        import jlaunch.runtime.driver  # noqa: F401 (its import is its use)
        from jlaunch.runtime import agent

        return LocalAgent.fork(agent.main, environment)
    except OSError as error:
        raise ConfigError(f"this machine: cannot start the job's agent: {error.strerror}") from error


def _record(spec: JobSpec) -> JobRecord:
    return JobRecord(
        version=PROTOCOL_VERSION,
        job=spec.job,
        pid=os.getpid(),
        started_at=time.time(),
        command=spec.program,
        cwd=spec.cwd,
        world_size=spec.world_size,
        backend=spec.backend.value,
        policy=spec.policy.value,
    )


def _ensure_standard_files() -> None:
    """Open /dev/null in the place of a standard file that we were started without.

    Else the next socket would get its number, and be taken for stdin or written to as stderr.
    """
    fd = os.open(os.devnull, os.O_RDWR)
    while fd <= 2:
        fd = os.dup(fd)
    os.close(fd)


def _terminal_size() -> tuple[int, int] | None:
    for fd in (1, 2, 0):
        try:
            size = os.get_terminal_size(fd)
        except OSError:
            continue
        return (size.columns, size.lines) if size.columns > 0 else None
    return None
