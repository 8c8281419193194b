"""The loop of a process: one poller, one timer, and nothing that decides.

Rules of this file. It holds the only ``while True`` of the launcher's Python. Handlers run to their end and
never block; what is ready is served in the order in which it was registered, so what matters most
is registered first. A machine is driven through ``MachineDriver``: events in, actions out, and its
next deadline armed after every step.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Generic, Protocol, TypeVar

import zmq

from jlaunch.io.clock import Clock

Handler = Callable[[], None]

_EventIn_contra = TypeVar("_EventIn_contra", contravariant=True)
_ActionOut_co = TypeVar("_ActionOut_co", covariant=True)
_Event = TypeVar("_Event")
_Action = TypeVar("_Action")


class Timer:
    """One appointment of the loop; ``cancel`` it if it is not wanted any more."""

    def __init__(self, at: float, handler: Handler) -> None:
        self.at = at
        self.handler: Handler | None = handler

    def cancel(self) -> None:
        """Forget the appointment; harmless if it is over."""
        self.handler = None


class Driver:
    """The loop: files, sockets, timers, signals and wake-ups from other threads, until ``stop``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._poller = zmq.Poller()
        self._readers: dict[object, Handler] = {}
        self._writers: dict[object, Handler] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._stopped = False
        self._signals: _Signals | None = None

    def now(self) -> float:
        """Monotonic seconds."""
        return self._clock.now()

    # ---- what to wait for ------------------------------------------------------------------------

    def watch(self, source: int | zmq.Socket[bytes], handler: Handler) -> None:
        """Call ``handler`` whenever the file or socket is readable (or at its end)."""
        self._readers[source] = handler
        self._register(source)

    def watch_writable(self, source: int | zmq.Socket[bytes], handler: Handler) -> None:
        """Call ``handler`` whenever the file or socket takes more."""
        self._writers[source] = handler
        self._register(source)

    def unwatch(self, source: int | zmq.Socket[bytes]) -> None:
        """Stop reading; harmless if it was not watched."""
        if self._readers.pop(source, None):
            self._register(source)

    def unwatch_writable(self, source: int | zmq.Socket[bytes]) -> None:
        """Stop waiting to write; harmless if it was not watched."""
        if self._writers.pop(source, None):
            self._register(source)

    def call_at(self, at: float, handler: Handler) -> Timer:
        """Call ``handler`` once, at monotonic second ``at`` or soon after."""
        timer = Timer(at, handler)
        if at < math.inf:
            heapq.heappush(self._timers, (at, next(self._order), timer))
        return timer

    def call_later(self, delay_s: float, handler: Handler) -> Timer:
        """Call ``handler`` once, after ``delay_s`` seconds."""
        return self.call_at(self.now() + delay_s, handler)

    def call_every(self, interval_s: float, handler: Handler) -> None:
        """Call ``handler`` every ``interval_s`` seconds; turns that were missed are not made up for."""

        def turn() -> None:
            self.call_later(interval_s, turn)
            handler()

        self.call_later(interval_s, turn)

    def on_signals(self, signals: Iterable[signal.Signals], handler: Callable[[int], None]) -> None:
        """Call ``handler`` with the number of each signal, from the loop. Only the main thread may ask.

        A signal that the process inherited as ignored (``nohup``) stays ignored.
        """
        if self._signals is None:
            self._signals = _Signals()
            self.watch(self._signals.fileno(), self._signals.deliver)
        self._signals.add(signals, handler)

    # ---- the loop --------------------------------------------------------------------------------

    def stop(self) -> None:
        """End ``run`` after the present turn."""
        self._stopped = True

    def run(self) -> None:
        """Serve until ``stop``."""
        while True:
            self._serve(self._poller.poll(self._timeout_ms()))
            self._fire()
            if self._stopped:
                return

    def close(self) -> None:
        """Give the signals back. The files and sockets belong to those who registered them."""
        if self._signals is not None:
            self._signals.close()

    def _serve(self, ready: Sequence[tuple[object, int]]) -> None:
        for source, flags in ready:
            # A handler may have dropped what was ready after it: ask again each time.
            if flags & ~zmq.POLLOUT and (reader := self._readers.get(source)):
                reader()
            if flags & ~zmq.POLLIN and (writer := self._writers.get(source)):
                writer()

    def _fire(self) -> None:
        now = self.now()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            handler, timer.handler = timer.handler, None
            if handler is not None:
                handler()

    def _timeout_ms(self) -> int | None:
        while self._timers and self._timers[0][2].handler is None:
            heapq.heappop(self._timers)
        if self._stopped:
            return 0
        if not self._timers:
            return None
        # Rounded up: a poll that returns a little early would turn the loop for nothing.
        return max(0, math.ceil((self._timers[0][0] - self.now()) * 1000))

    def _register(self, source: object) -> None:
        flags = (zmq.POLLIN if source in self._readers else 0) | (
            zmq.POLLOUT if source in self._writers else 0
        )
        if flags:
            self._poller.register(source, flags)
        elif source in self._poller:
            self._poller.unregister(source)


class _Signals:
    """Signals as bytes in a pipe: the handler does nothing, the interpreter writes the number."""

    def __init__(self) -> None:
        self._reader, self._writer = _wake_up_pipe()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._before: dict[int, object] = {}
        self._wakeup_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)

    def fileno(self) -> int:
        return self._reader

    def add(self, signals: Iterable[signal.Signals], handler: Callable[[int], None]) -> None:
        for number in signals:
            if signal.getsignal(number) is signal.SIG_IGN:
                continue
            self._handlers[number] = handler
            self._before[number] = signal.signal(number, _nothing)

    def deliver(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for number in os.read(self._reader, 4096):
                handler = self._handlers.get(number)
                if handler is not None:
                    handler(number)

    def close(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._reader)
        os.close(self._writer)


def _nothing(number: int, frame: FrameType | None) -> None:
    """The handler that makes the interpreter write to the wake-up socket."""


def _wake_up_pipe() -> tuple[int, int]:
    """A pipe on which neither end ever blocks: when it is full, the wake-up is there already."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    return reader, writer


class WakeUp:
    """A way for another thread to make the loop call a handler: any number of ``set`` is one call."""

    def __init__(self, driver: Driver, handler: Handler) -> None:
        self._driver = driver
        self._handler = handler
        self._reader, self._writer = _wake_up_pipe()
        driver.watch(self._reader, self._called)

    def set(self) -> None:
        """Wake the loop; callable from any thread."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b"\0")

    def close(self) -> None:
        """Release the pipe; no thread may call ``set`` any more."""
        self._driver.unwatch(self._reader)
        os.close(self._reader)
        os.close(self._writer)

    def _called(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, 4096)
        self._handler()


class Machine(Protocol[_EventIn_contra, _ActionOut_co]):
    """The doors of a machine of the core."""

    def handle(self, event: _EventIn_contra, now: float) -> Sequence[_ActionOut_co]:
        """Take one event, return what to do."""
        ...

    def next_deadline(self) -> float | None:
        """When it wants to be woken, in monotonic seconds; None for never."""
        ...


class MachineDriver(Generic[_Event, _Action]):
    """Feeds one machine: every event in order, every action before the next event, one timer.

    ``perform`` carries out an action and may call ``feed``: such events wait their turn. ``tap`` sees each
    event right before the machine does, with the same moment.
    """

    def __init__(
        self,
        driver: Driver,
        machine: Machine[_Event, _Action],
        perform: Callable[[_Action], None],
        *,
        deadline_event: Callable[[], _Event],
        tap: Callable[[_Event, float], None] | None = None,
    ) -> None:
        self._tap = tap
        self._driver = driver
        self._machine = machine
        self._perform = perform
        self._deadline_event = deadline_event
        self._events: deque[_Event] = deque()
        self._busy = False
        self._timer: Timer | None = None

    def feed(self, event: _Event) -> None:
        """Hand the machine one event and carry out what it answers."""
        self._events.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._events:
                event, now = self._events.popleft(), self._driver.now()
                if self._tap is not None:
                    self._tap(event, now)
                for action in self._machine.handle(event, now):
                    self._perform(action)
        finally:
            self._busy = False
        self._arm()

    def _arm(self) -> None:
        at = self._machine.next_deadline()
        if self._timer is not None:
            if self._timer.at == at and self._timer.handler is not None:
                return
            self._timer.cancel()
        self._timer = None if at is None else self._driver.call_at(at, self._deadline_reached)

    def _deadline_reached(self) -> None:
        self._timer = None
        self.feed(self._deadline_event())
