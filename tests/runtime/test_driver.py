"""The loop: order, timers, signals, threads, and the driving of a machine."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from jlaunch.io.clock import SystemClock
from jlaunch.runtime.driver import Driver, MachineDriver, WakeUp


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver(SystemClock())
    timeout = driver.call_later(20.0, lambda: pytest.fail("the loop did not stop"))
    yield driver
    timeout.cancel()
    driver.close()


def pipe_with(data: bytes) -> int:
    reader, writer = os.pipe()
    os.write(writer, data)
    os.close(writer)
    return reader


def test_what_was_registered_first_is_served_first(driver: Driver) -> None:
    served: list[int] = []
    readers = [pipe_with(b"x") for _ in range(3)]
    for reader in reversed(readers):
        driver.watch(reader, lambda reader=reader: served.append(reader))  # type: ignore[misc]
    driver.stop()
    driver.run()
    assert served == readers[::-1]
    for reader in readers:
        driver.unwatch(reader)
        os.close(reader)


def test_a_handler_may_drop_what_is_ready_after_it(driver: Driver) -> None:
    first, second = pipe_with(b"x"), pipe_with(b"x")
    served: list[str] = []

    def drop() -> None:
        served.append("first")
        driver.unwatch(second)
        os.close(second)

    driver.watch(first, drop)
    driver.watch(second, lambda: served.append("second"))
    driver.stop()
    driver.run()
    assert served == ["first"]
    driver.unwatch(first)
    os.close(first)


def test_timers_fire_in_order_and_not_when_cancelled(driver: Driver) -> None:
    fired: list[str] = []
    driver.call_later(0.02, driver.stop)
    driver.call_later(0.01, lambda: fired.append("b"))
    driver.call_later(0.0, lambda: fired.append("a"))
    driver.call_later(0.005, lambda: fired.append("never")).cancel()
    driver.call_at(float("inf"), lambda: fired.append("never"))
    driver.run()
    assert fired == ["a", "b"]


def test_an_idle_loop_does_not_turn(driver: Driver) -> None:
    silent, writer = os.pipe()
    driver.watch(silent, lambda: pytest.fail("nothing was written"))
    polls = 0
    poll = driver._poller.poll

    def counted(timeout: int | None) -> list[tuple[Any, int]]:
        nonlocal polls
        polls += 1
        return poll(timeout)

    driver._poller.poll = counted  # type: ignore[method-assign,assignment]
    driver.call_later(0.2, driver.stop)
    driver.run()
    assert polls <= 3
    driver.unwatch(silent)
    os.close(silent)
    os.close(writer)


def test_signals_reach_the_loop_by_number(driver: Driver) -> None:
    got: list[int] = []

    def take(number: int) -> None:
        got.append(number)
        if len(got) == 2:
            driver.stop()

    driver.on_signals((signal.SIGTERM, signal.SIGHUP), take)
    driver.call_later(0, lambda: os.kill(os.getpid(), signal.SIGHUP))
    driver.call_later(0, lambda: os.kill(os.getpid(), signal.SIGTERM))
    driver.run()
    assert sorted(got) == [signal.SIGHUP, signal.SIGTERM]


def test_a_signal_inherited_as_ignored_stays_ignored(driver: Driver) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        driver.on_signals((signal.SIGHUP,), lambda _: pytest.fail("was not to be heard"))
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_closed_driver_gives_the_signals_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    driver = Driver(SystemClock())
    driver.on_signals((signal.SIGTERM,), lambda _: None)
    driver.close()
    assert signal.getsignal(signal.SIGTERM) is before


def test_another_thread_wakes_the_loop(driver: Driver) -> None:
    wake = WakeUp(driver, driver.stop)
    thread = threading.Thread(target=wake.set)
    thread.start()
    driver.run()
    thread.join()
    wake.close()


class Echo:
    """A machine that repeats what it hears, and wants to be woken at a given moment."""

    def __init__(self, deadline: float | None = None) -> None:
        self.deadline = deadline
        self.heard: list[str] = []

    def handle(self, event: str, now: float) -> Sequence[str]:
        self.heard.append(event)
        if event == "woken":
            self.deadline = None
        return [f"{event}.1", f"{event}.2"]

    def next_deadline(self) -> float | None:
        return self.deadline


def test_all_actions_of_an_event_come_before_the_next_event(driver: Driver) -> None:
    done: list[str] = []
    machine = Echo()

    def perform(action: str) -> None:
        done.append(action)
        if action == "a.1":
            echo.feed("b")

    echo = MachineDriver(driver, machine, perform, deadline_event=lambda: "woken")
    echo.feed("a")
    assert done == ["a.1", "a.2", "b.1", "b.2"]


def test_the_machine_is_woken_at_its_deadline_once(driver: Driver) -> None:
    machine = Echo(driver.now() + 0.01)
    driven = MachineDriver(driver, machine, lambda _: None, deadline_event=lambda: "woken")
    driven.feed("a")
    driver.call_later(0.1, driver.stop)
    driver.run()
    assert machine.heard == ["a", "woken"]
