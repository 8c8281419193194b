"""Snapshots for whoever asks, and nobody who asks can hold the supervisor up."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator

import pytest
import zmq

from jlaunch.core.contract import SupervisorFiles
from jlaunch.io.clock import SystemClock
from jlaunch.runtime.driver import Driver, WakeUp
from jlaunch.runtime.status_server import MAX_WAITING, REQUEST, StatusError, StatusServer, ask_status

WAIT_MS = 10_000


class Supervisor:
    """A loop with nothing but a status server, whose job says how many samples will come."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.driver = Driver(SystemClock())
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.samples = 0
        self.asked = 0
        self.answers = 0
        self.server = StatusServer(
            self.driver,
            self.context,
            os.path.join(directory, SupervisorFiles.STATUS_SOCKET),
            sample=self._sample,
            snapshot=self._snapshot,
        )

    def _sample(self) -> int:
        self.asked += 1
        return self.samples

    def _snapshot(self) -> bytes:
        self.answers += 1
        return b'{"job":"j"}'

    def ask(self) -> dict[str, object]:
        """Ask from another thread, and turn the loop until the answer is there."""
        got: list[dict[str, object]] = []
        wake = WakeUp(self.driver, self.driver.stop)

        def client() -> None:
            got.append(ask_status(self.directory, WAIT_MS / 1000))
            wake.set()

        thread = threading.Thread(target=client)
        thread.start()
        self.driver.run()
        thread.join()
        wake.close()
        return got[0]

    def client(self) -> zmq.Socket[bytes]:
        socket = self.context.socket(zmq.DEALER)
        socket.linger = 0
        socket.connect(f"ipc://{os.path.join(self.directory, SupervisorFiles.STATUS_SOCKET)}")
        return socket

    def turns_until(self, socket: zmq.Socket[bytes]) -> bool:
        """Turn the loop until something is there to be received."""
        self.driver.watch(socket, self.driver.stop)
        self.driver.call_later(WAIT_MS / 1000, self.driver.stop)
        self.driver._stopped = False
        self.driver.run()
        self.driver.unwatch(socket)
        return bool(socket.poll(0))

    def close(self) -> None:
        self.server.close()
        self.context.term()
        self.driver.close()


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    with tempfile.TemporaryDirectory(prefix="jl-") as directory:
        supervisor = Supervisor(directory)
        yield supervisor
        supervisor.close()


def test_an_answer_comes_after_the_ranks_were_sampled(supervisor: Supervisor) -> None:
    supervisor.samples = 2
    for _ in range(2):
        supervisor.driver.call_later(0.02, supervisor.server.sampled)
    assert supervisor.ask() == {"job": "j"}
    assert (supervisor.asked, supervisor.answers) == (1, 1)


def test_ranks_that_do_not_answer_are_not_waited_for(supervisor: Supervisor) -> None:
    supervisor.samples = 1
    assert supervisor.ask() == {"job": "j"}


def test_without_ranks_the_answer_is_at_once(supervisor: Supervisor) -> None:
    assert supervisor.ask() == {"job": "j"}


def test_many_askers_share_one_look_and_a_flood_is_bounded(supervisor: Supervisor) -> None:
    supervisor.samples = 1
    flood, last = supervisor.client(), supervisor.client()
    for _ in range(2 * MAX_WAITING):
        flood.send(REQUEST)
    assert supervisor.turns_until(flood)
    last.send(REQUEST)
    assert supervisor.turns_until(last)
    answered = 0
    while flood.poll(0):
        flood.recv()
        answered += 1
    assert answered <= MAX_WAITING
    flood.close()
    last.close()


def test_another_request_is_not_answered(supervisor: Supervisor) -> None:
    stranger, asker = supervisor.client(), supervisor.client()
    stranger.send(b"snapshot 99")
    asker.send(REQUEST)
    assert supervisor.turns_until(asker)
    assert not stranger.poll(0)
    stranger.close()
    asker.close()


def test_a_supervisor_that_is_not_there_is_an_error_within_the_bound() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="jl-") as directory,
        pytest.raises(StatusError, match="did not answer"),
    ):
        ask_status(directory, 0.1)
