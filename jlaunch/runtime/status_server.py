"""Snapshots of a running job, asked for over ``status.ipc`` (private by the mode of the job's directory).

A request is one frame, ``REQUEST``; the answer is one frame of JSON, ``core.snapshot``'s. Before an
answer the ranks are sampled, so that it shows where they are now; ranks that do not answer within
``SAMPLE_S`` are shown as they were last seen.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec
import zmq

from jlaunch.core.contract import SupervisorFiles
from jlaunch.core.errors import JlaunchError
from jlaunch.runtime.driver import Driver, Timer

REQUEST = b"snapshot 1"
"""The only request, with the version of this little protocol."""

SAMPLE_S = 0.2
"""How long an answer waits for the ranks' samples."""

REQUEST_MAX_BYTES = 1024
"""ZeroMQ's own greeting has to pass under this bound, too."""

MAX_WAITING = 64
"""Requests that may wait for an answer at once; more are dropped, their askers time out."""


class StatusError(JlaunchError):
    """A supervisor that does not answer."""


class StatusServer:
    """The supervisor's end. ``sample`` asks for samples of all ranks and returns how many will come."""

    def __init__(
        self,
        driver: Driver,
        context: zmq.Context[zmq.Socket[bytes]],
        path: str,
        *,
        sample: Callable[[], int],
        snapshot: Callable[[], bytes],
    ) -> None:
        self._driver = driver
        self._sample = sample
        self._snapshot = snapshot
        self._waiting: list[bytes] = []
        self._samples_due = 0
        self._timer: Timer | None = None
        # Not ROUTER_MANDATORY, and never a blocking send: an asker that is slow or gone loses its answer.
        self._socket = context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.maxmsgsize = REQUEST_MAX_BYTES
        self._socket.bind(f"ipc://{path}")
        driver.watch(self._socket, self._receive)

    def sampled(self) -> None:
        """One of the samples has come."""
        self._samples_due -= 1
        if self._waiting and self._samples_due <= 0:
            self._answer()

    def close(self) -> None:
        """Close the socket."""
        self._driver.unwatch(self._socket)
        self._socket.close()

    def _receive(self) -> None:
        try:
            frames = self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        if len(frames) != 2 or frames[1] != REQUEST or len(self._waiting) >= MAX_WAITING:
            return
        self._waiting.append(frames[0])
        if len(self._waiting) == 1:
            self._samples_due = self._sample()
            if self._samples_due == 0:
                self._answer()
            else:
                self._timer = self._driver.call_later(SAMPLE_S, self._answer)

    def _answer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        answer = self._snapshot()
        for asker in self._waiting:
            try:
                self._socket.send_multipart([asker, answer], zmq.NOBLOCK)
            except zmq.Again:
                continue
        self._waiting.clear()


def ask_status(job_dir: str, timeout_s: float = 2.0) -> dict[str, object]:
    """The snapshot of the job in ``job_dir`` as plain values (the client of ``jlaunch status``).

    Raises StatusError (a JlaunchError) when the supervisor does not answer within ``timeout_s``.
    """
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(f"ipc://{os.path.join(job_dir, SupervisorFiles.STATUS_SOCKET)}")
        socket.send(REQUEST)
        if not socket.poll(int(timeout_s * 1000)):
            raise StatusError(
                f"its supervisor did not answer within {timeout_s:g} s; is it stopped, or ending?"
            )
        return msgspec.json.decode(socket.recv(), type=dict[str, object])
