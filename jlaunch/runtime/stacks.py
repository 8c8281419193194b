"""The agent asks ranks where they are, and passes on what they write."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable

from jlaunch.core.actions import AskForStack
from jlaunch.core.contract import HostFiles
from jlaunch.core.events import StackTaken
from jlaunch.io.stack import StackPipe, refusal_to_ask
from jlaunch.runtime.driver import Driver, Timer

STACK_PATIENCE_S = 2.0
"""A handler runs at once in a process that runs; one that is stopped, or hangs in the kernel, does not."""

Holder = Callable[[int, int], tuple[int, int] | None]


class Stacks:
    """One FIFO for each rank of this host, for as long as its epoch is the last.

    ``holder(rank, epoch)`` tells who holds the claim and which signal it answers; ``send`` takes the answer.
    """

    def __init__(
        self, driver: Driver, host_dir: str, *, holder: Holder, send: Callable[[StackTaken], None]
    ) -> None:
        self._driver = driver
        self._host_dir = host_dir
        self._holder = holder
        self._send = send
        self._pipes: dict[tuple[int, int], StackPipe] = {}
        self._pending: dict[tuple[int, int], Timer] = {}

    def prepare(self, rank: int, epoch: int) -> None:
        """A process is about to be started; those of earlier epochs are gone. No FIFO: no stacks."""
        for old in [key for key in self._pipes if key[1] < epoch]:
            self._forget(old)
        with contextlib.suppress(OSError):
            path = os.path.join(self._host_dir, HostFiles.stack_pipe(rank, epoch))
            self._pipes[(rank, epoch)] = StackPipe(path)

    def ask(self, deed: AskForStack) -> None:
        """Ask one rank; the answer comes when it has written its stacks, or cannot."""
        key = (deed.rank, deed.epoch)
        if key in self._pending:
            return
        holder, pipe = self._holder(*key), self._pipes.get(key)
        if holder is None or pipe is None:
            self._answer(key, error="it is not there")
            return
        refusal = refusal_to_ask(*holder)
        if refusal:
            self._answer(key, error=refusal)
            return
        pipe.begin()
        self._driver.watch(pipe.fd, functools.partial(self._read, key))
        give_up = functools.partial(self._give_up, key)
        self._pending[key] = self._driver.call_later(STACK_PATIENCE_S, give_up)
        try:
            os.kill(*holder)
        except OSError as error:
            self._answer(key, error=str(error))

    def close(self) -> None:
        """Release all."""
        for key in list(self._pipes):
            self._forget(key)

    def _read(self, key: tuple[int, int]) -> None:
        lines = self._pipes[key].take()
        if lines is not None:
            self._answer(key, lines=lines, error="" if lines else "it ended before it answered")

    def _give_up(self, key: tuple[int, int]) -> None:
        """What came without an end is better than nothing."""
        lines = self._pipes[key].rest()
        what = "not all of the answer came" if lines else "no answer"
        self._answer(key, lines=lines, error=f"{what} within {STACK_PATIENCE_S:g} s")

    def _answer(self, key: tuple[int, int], *, lines: tuple[str, ...] = (), error: str = "") -> None:
        self._settle(key)
        self._send(StackTaken(rank=key[0], epoch=key[1], lines=lines, error=error))

    def _settle(self, key: tuple[int, int]) -> None:
        pending = self._pending.pop(key, None)
        if pending is not None:
            pending.cancel()
            self._driver.unwatch(self._pipes[key].fd)

    def _forget(self, key: tuple[int, int]) -> None:
        self._settle(key)
        self._pipes.pop(key).close()
