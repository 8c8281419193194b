"""A rank's socket to its agent: the rendezvous of ``init``, and reports.

Facts about waiting. ``init`` waits for other ranks, with no bound of its own: the supervisor answers
every rank, with RefuseGroup in the end. A signal must end the wait, but the system may hand it to any
thread of the process; so while the main thread waits here, Python writes each signal to a pipe that is
polled as well, and runs the handlers when the poll returns.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import zmq

from jlaunch.backend.errors import PeerLost
from jlaunch.core.actions import FormGroup, OpenGroup, RefuseGroup
from jlaunch.core.errors import ProtocolError
from jlaunch.core.messages import (
    MAX_MESSAGE_BYTES,
    Formed,
    InitFailed,
    Join,
    Report,
    decode_to_rank,
    encode_from_rank,
)

SEND_QUEUE_MESSAGES = 16
"""Reports that may wait for the agent; later ones are dropped."""

LAST_WORDS_MS = 200
"""How long InitFailed may take to leave this process when it ends."""

_Answer = TypeVar("_Answer", FormGroup, OpenGroup)


class RankLink:
    """The DEALER of one rank in one epoch. Not for two threads at once; not for a child made by fork."""

    def __init__(self, agent_socket: str, *, rank: int, epoch: int) -> None:
        self._rank = rank
        self._epoch = epoch
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = LAST_WORDS_MS
        self._socket.sndhwm = SEND_QUEUE_MESSAGES
        self._socket.maxmsgsize = MAX_MESSAGE_BYTES
        self._socket.connect(f"ipc://{agent_socket}")

    def join(self, address: bytes) -> tuple[bytes, ...]:
        """Say that this rank is ready to connect; wait for the addresses of all ranks, by rank.

        Raises as ``formed`` does.
        """
        self._send(Join(rank=self._rank, epoch=self._epoch, address=address))
        return self._wait_for(FormGroup).addresses

    def formed(self) -> None:
        """Say that this rank is connected; wait until all are.

        Raises PeerLost if the group will not form because ranks are lost, and RuntimeError for any other
        cause, another version of jlaunch on the agent's side among them.
        """
        self._send(Formed(rank=self._rank, epoch=self._epoch))
        self._wait_for(OpenGroup)

    def init_failed(self, error: str) -> None:
        """Say why ``init`` fails on this rank."""
        self._send(InitFailed(rank=self._rank, epoch=self._epoch, error=error))

    def report(self, numbers: dict[str, float]) -> bool:
        """Send numbers for the dashboards; False if the agent is too far behind to take them."""
        message = encode_from_rank(Report(rank=self._rank, epoch=self._epoch, numbers=numbers))
        try:
            self._socket.send(message, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        """Close the socket; what was said before still leaves (see ``LAST_WORDS_MS``)."""
        self._socket.close()
        self._context.term()

    def _send(self, body: Join | Formed | InitFailed) -> None:
        self._socket.send(encode_from_rank(body))

    def _receive(self) -> FormGroup | OpenGroup | RefuseGroup:
        try:
            return decode_to_rank(self._socket.recv()).body
        except ProtocolError as error:
            raise RuntimeError(f"the agent of this host: {error}") from error

    def _wait_for(self, kind: type[_Answer]) -> _Answer:
        with _readable_on_signal() as wakeup:
            poller = zmq.Poller()
            poller.register(self._socket, zmq.POLLIN)
            if wakeup is not None:
                poller.register(wakeup, zmq.POLLIN)
            while True:
                ready = dict(poller.poll())
                if wakeup is not None and wakeup in ready:
                    os.read(wakeup, 64)
                if self._socket not in ready:
                    continue
                body = self._receive()
                if body.epoch != self._epoch:
                    continue
                if isinstance(body, RefuseGroup):
                    raise refusal(body)
                if isinstance(body, kind):
                    return body


def refusal(order: RefuseGroup) -> RuntimeError:
    """What ``init`` raises when the supervisor refuses the group."""
    if not order.losses:
        return RuntimeError(f"the group of epoch {order.epoch} will not form: {order.why}")
    return PeerLost(
        f"the group of epoch {order.epoch} will not form: {order.why}",
        reasons={loss.rank: loss.reason.word for loss in order.losses},
        epoch=order.epoch,
    )


@contextmanager
def _readable_on_signal() -> Iterator[int | None]:
    """A file descriptor that becomes readable with every signal; None where Python cannot give one."""
    if threading.current_thread() is not threading.main_thread():
        yield None
        return
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    try:
        previous = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        try:
            yield read_end
        finally:
            signal.set_wakeup_fd(previous)
    finally:
        with suppress(OSError):
            os.close(read_end)
        with suppress(OSError):
            os.close(write_end)
