"""The process that is a rank: its claim, its group, its way out.

Rules of this file. Who is the rank is decided by the claim at ``init``, not by the environment, which
children inherit: one live process holds a rank at a time. There is one ``Rank`` in a process, made by the
first ``init``; it joins once, and a join that failed stays failed, since the supervisor has been told.
A child made by fork starts anew: it holds nothing, and says so if it calls ``init``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from jlaunch import backend
from jlaunch.backend.errors import CollectiveError, JobStopping
from jlaunch.runtime.rank_environment import RankEnvironment, read_rank_environment
from jlaunch.runtime.rank_stack import arm as arm_stack

if TYPE_CHECKING:
    from jlaunch.backend._ext import Membership
    from jlaunch.runtime.rank_link import RankLink

REPORT_INTERVAL_S = 0.1
"""Between two Report messages of a rank: dashboards draw no faster."""


class Rank:
    """This process as a rank. Made only in a process of a job whose backend is jlaunch's own."""

    def __init__(self, environment: RankEnvironment) -> None:
        self.environment = environment
        self._lock = threading.RLock()
        self._native: Any = None
        self._membership: Membership | None = None
        self._link: RankLink | None = None
        self._group: Any = None
        self._refused: Exception | None = None
        self._numbers: dict[str, float] = {}
        self._report_at = 0.0
        self._is_leaving = False

    def join(self) -> Any:
        """The job's group, an ``mx.distributed.Group``; the first call forms it, with all ranks.

        Raises RuntimeError if another live process is this rank (its pid is named) or the group will not
        form, PeerLost if that is because ranks are lost, VerbsError if a device refuses, JobStopping on
        SIGTERM. What was raised once is raised again by every later call.
        """
        with self._lock:
            if self._refused is not None:
                raise self._refused.with_traceback(None)
            if self._group is None:
                # Stands while the group forms, so that a signal handler cannot start a second rendezvous.
                self._refused = RuntimeError("init was interrupted: this rank cannot join any more")
                try:
                    self._group = self._form()
                except Exception as error:
                    self._refused = error
                    raise
                self._refused = None
            return self._group

    def failure(self) -> CollectiveError | None:
        """The group's first failure, if it has one."""
        return self._membership.failure() if self._membership is not None else None

    def report(self, numbers: Mapping[str, float]) -> None:
        """Tell the agent that the program moves, and (at most ten times a second) where it is."""
        if self._membership is None or self._group is None:
            return
        self._membership.report()
        # Another thread is reporting (its numbers are as good as these), or the rank is leaving.
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._numbers.update(numbers)
            now = time.monotonic()
            if now >= self._report_at and self._link is not None and self._link.report(self._numbers):
                self._report_at = now + REPORT_INTERVAL_S
                self._numbers = {}
        finally:
            self._lock.release()

    def leave(self) -> None:
        """At the interpreter's exit: break what still runs, free the claim, close the socket.

        From here on SIGTERM asks for nothing that is not already happening.
        """
        self._is_leaving = True
        if self._native is not None:
            self._native.close_channels()
        if self._membership is not None:
            self._membership.leave()
        # A daemon thread may still be waiting in the rendezvous: its socket ends with the process.
        if self._link is not None and self._lock.acquire(blocking=False):
            self._link.close()
            self._link = None

    def _form(self) -> Any:
        where = self.environment
        try:
            self._native = backend.load()
        except ImportError as error:
            self._tell_failure(error)
            raise
        # Before the claim is held, nothing may speak for this rank.
        membership: Membership = self._native.Membership(where.rank_block, where.host_block)
        self._membership = membership
        self._install_sigterm()
        arm_stack(self._native, membership, where.stack_pipe)
        link = self._open_link()
        with self._telling_failure():
            self._open(membership)
        addresses = link.join(membership.address())
        with self._telling_failure():
            membership.connect(addresses)
        link.formed()
        membership.formed()
        return membership.group()

    def _open_link(self) -> RankLink:
        from jlaunch.runtime.rank_link import RankLink

        where = self.environment
        self._link = RankLink(where.agent_socket, rank=where.rank, epoch=where.epoch)
        return self._link

    @contextmanager
    def _telling_failure(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # Who stops the job, or is gone, need not be told.
            if not isinstance(error, JobStopping):
                self._tell_failure(error)
            raise

    def _tell_failure(self, error: Exception) -> None:
        link = self._link or self._open_link()
        link.init_failed(f"{type(error).__name__}: {error}")

    def _open(self, membership: Membership) -> None:
        where = self.environment
        membership.open(
            rank=where.rank,
            size=where.world_size,
            epoch=where.epoch,
            provider=backend.provider_library(where.verbs),
            devices=devices_of(where),
            ring=where.backend == "jaccl-ring",
            deadline_s=where.deadline_s,
        )

    def _install_sigterm(self) -> None:
        """Make SIGTERM raise JobStopping, unless the program has a handler of its own.

        Python sets handlers in the main thread only: an ``init`` elsewhere leaves SIGTERM to the system.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def _on_sigterm(self, _signum: int, _frame: FrameType | None) -> None:
        if self._is_leaving or not self._native.claim_stop():
            return
        failure = self.failure()
        if isinstance(failure, JobStopping):
            raise failure
        raise JobStopping("the job is being stopped (SIGTERM)", epoch=self.environment.epoch)

    def forget_sigterm(self) -> None:
        """In a child made by fork: SIGTERM is no stop of the job there."""
        if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def devices_of(where: RankEnvironment) -> list[list[str]]:
    """The devices that lead to each peer, from MLX's matrix of devices; [] if the job names none.

    Raises RuntimeError if the file cannot be read as such a matrix.
    """
    if not where.devices_file:
        return []
    try:
        with open(where.devices_file, encoding="utf-8") as file:
            row = json.load(file)[where.rank]
        return [_names(entry) for entry in row]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RuntimeError(
            f"{where.devices_file} (MLX_IBV_DEVICES): expected a matrix of device names with a row for rank "
            f"{where.rank}: {error}"
        ) from error


def _names(entry: Any) -> list[str]:
    if entry is None:
        return []
    names = [entry] if isinstance(entry, str) else list(entry)
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"found {entry!r} where device names were expected")
    return names


# ---- the one of this process ---------------------------------------------------------------------

_rank: Rank | None = None
_inherited: list[Rank] = []  # by a child made by fork: never closed nor destroyed here
_making = threading.Lock()


def this_rank() -> Rank:
    """The rank of this process, which may not have joined yet. Raises RuntimeError outside a job."""
    global _rank
    with _making:
        if _rank is None:
            environment = read_rank_environment(os.environ)
            if environment is None:
                raise RuntimeError("this process is not in a jlaunch job: start the program with jlaunch")
            _rank = Rank(environment)
        return _rank


def joined_rank() -> Rank | None:
    """The rank of this process if it has called ``init``."""
    return _rank


def leave() -> None:
    """Leave the job, at exit; nothing if this process never joined."""
    if _rank is not None:
        _rank.leave()


def _forget_in_child() -> None:
    global _rank, _making
    _making = threading.Lock()
    if _rank is not None:
        _rank.forget_sigterm()
        _inherited.append(_rank)
        _rank = None


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget_in_child)
