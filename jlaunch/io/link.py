"""The ZeroMQ links of the control plane: supervisor <-> agent (CURVE), agent <-> its ranks.

Facts about ZeroMQ this file rests on (libzmq 4.3).
- CURVE alone proves the server to the client. Who the client is, a ZAP handler must ask: here every
  agent has a key of its own, the handler knows the keys of this job, and the name it gives to a key
  (the host's index) comes back with each message, so no agent can speak for another host.
- A ROUTER drops what it cannot route unless ROUTER_MANDATORY is set; with it, ``send`` raises
  EHOSTUNREACH for a peer that is gone and EAGAIN for one whose queue is full.
- Closing a context waits for unsent messages as long as LINGER says.

Nothing here blocks: a message that does not fit in ZeroMQ's queue waits in a backlog of our own, with
a bound, and goes out when the socket takes more. Messages that cannot be understood are counted and
dropped; the first one is reported by its error.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

import zmq
from zmq.utils import z85

from jlaunch.core.actions import AgentOrder, FormGroup, OpenGroup, RefuseGroup
from jlaunch.core.errors import JlaunchError, ProtocolError
from jlaunch.core.events import AgentEvent
from jlaunch.core.messages import (
    MAX_MESSAGE_BYTES,
    Down,
    FromRank,
    Output,
    OutputTaken,
    Stdin,
    StdinTaken,
    Up,
    decode_down,
    decode_from_rank,
    decode_up,
    encode_down,
    encode_to_rank,
    encode_up,
)

QUEUE_MESSAGES = 1000
"""ZeroMQ's own queue per peer: its default high-water mark."""

BACKLOG_MESSAGES = 100_000
"""What may wait beyond it. At some 1,000 events a second this outlives every lease; then the peer is gone."""

RECEIVE_BATCH = 256
"""Messages taken in one turn of the loop, so that a flood on one link cannot starve the others."""

LINGER_MS = 1000
"""Last words of an agent (RankExited, the end of output) get so long to leave."""

_ZAP_ENDPOINT = "inproc://zeromq.zap.01"

_Message = TypeVar("_Message")


class LinkError(JlaunchError):
    """A link whose peer takes nothing any more."""


class KeyPair(NamedTuple):
    """A CURVE key pair in Z85. The secret half is never logged, nor put into argv or an environment."""

    public: bytes
    secret: bytes

    def __repr__(self) -> str:
        """The public half alone, so that no log can hold the secret one."""
        return f"KeyPair(public={self.public!r})"


def new_keys() -> KeyPair:
    """A fresh pair, made for one job."""
    public, secret = zmq.curve_keypair()
    return KeyPair(public, secret)


class _Backlog(Generic[_Message]):
    """Messages that ZeroMQ did not take yet, in order."""

    def __init__(self, send: Callable[[_Message], bool]) -> None:
        self._send = send
        self._waiting: deque[_Message] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, message: _Message) -> None:
        if self._waiting or not self._send(message):
            if len(self._waiting) >= BACKLOG_MESSAGES:
                raise LinkError(f"the peer took none of the last {BACKLOG_MESSAGES} messages")
            self._waiting.append(message)

    def flush(self) -> None:
        while self._waiting and self._send(self._waiting[0]):
            self._waiting.popleft()


class SupervisorLink:
    """The supervisor's end: one ROUTER for all agents, who are known by their keys.

    Register ``socket`` and ``zap_socket`` with the loop; call ``answer_zap`` when the latter is readable.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: KeyPair) -> None:
        self.refused = 0
        """Messages dropped: not decodable, another version, or in the name of another host."""
        self.first_refusal: str | None = None
        self._hosts_by_key: dict[bytes, int] = {}
        self._route: dict[int, bytes] = {}
        self._backlogs: dict[int, _Backlog[bytes]] = {}
        self.zap_socket = context.socket(zmq.REP)
        self.zap_socket.linger = 0
        self.zap_socket.bind(_ZAP_ENDPOINT)
        self.socket = _bounded(context.socket(zmq.ROUTER))
        self.socket.router_mandatory = True
        self.socket.router_handover = True
        self.socket.linger = 0
        self.socket.curve_server = True
        self.socket.curve_secretkey = keys.secret
        self.socket.zap_domain = b"agents"

    def bind(self, path: str) -> str:
        """Listen on the Unix socket ``path``; returns the endpoint for agents."""
        endpoint = f"ipc://{path}"
        self.socket.bind(endpoint)
        return endpoint

    def admit(self, host: int, public_key: bytes) -> None:
        """Let the agent of ``host`` in by its key; an earlier key of that host is not valid any more."""
        for key in [key for key, owner in self._hosts_by_key.items() if owner == host]:
            del self._hosts_by_key[key]
        self._hosts_by_key[public_key] = host
        self._route.pop(host, None)
        self._backlogs.pop(host, None)

    def answer_zap(self) -> None:
        """Tell ZeroMQ whether the key that somebody shows is one of this job's."""
        try:
            request = self.zap_socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        version, request_id = request[0], request[1]
        host = self._hosts_by_key.get(z85.encode(request[6])) if len(request) == 7 else None
        if host is None:
            answer = [version, request_id, b"400", b"not a key of this job", b"", b""]
        else:
            answer = [version, request_id, b"200", b"OK", str(host).encode(), b""]
        self.zap_socket.send_multipart(answer)

    def receive(self) -> Iterator[Up]:
        """Messages that have arrived, at most one batch."""
        for _ in range(RECEIVE_BATCH):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            message = self._accept(frames)
            if message is not None:
                yield message

    def send(self, host: int, body: AgentOrder | OutputTaken | Stdin) -> None:
        """Send to the agent of ``host``; dropped if that host has not said a word yet, or is gone.

        Raises LinkError if the host takes nothing any more.
        """
        backlog = self._backlogs.get(host)
        if backlog is not None:
            backlog.put(encode_down(body))

    @property
    def has_backlog(self) -> bool:
        """Whether the loop should wait until the socket takes more, then call ``flush``."""
        return any(self._backlogs.values())

    def flush(self) -> None:
        """Send what waited."""
        for backlog in self._backlogs.values():
            backlog.flush()

    def close(self) -> None:
        """Close both sockets; what was not sent is dropped."""
        self.socket.close()
        self.zap_socket.close()

    def _accept(self, frames: Sequence[zmq.Frame]) -> Up | None:
        try:
            host, message = _decode_from_agent(frames)
        except ProtocolError as error:
            self.refused += 1
            self.first_refusal = self.first_refusal or str(error)
            return None
        identity = frames[0].bytes
        if self._route.get(host) != identity:
            self._route[host] = identity
            self._backlogs[host] = _Backlog(self._sender(identity))
        return message

    def _sender(self, identity: bytes) -> Callable[[bytes], bool]:
        def send(payload: bytes) -> bool:
            try:
                self.socket.send_multipart([identity, payload], zmq.NOBLOCK)
            except zmq.Again:
                return False
            except zmq.ZMQError as error:
                # The agent's process is watched elsewhere: here its end only means that nobody listens.
                if error.errno != zmq.EHOSTUNREACH:
                    raise
            return True

        return send


class AgentLink:
    """The agent's end: one DEALER to the supervisor, with the keys it was started with."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], keys: KeyPair, *, server_public_key: bytes, host: int
    ) -> None:
        self.incarnation = os.urandom(8).hex()
        """Which life of the host's agent is speaking."""
        self._host = host
        self.socket = _bounded(context.socket(zmq.DEALER))
        self.socket.linger = LINGER_MS
        self.socket.identity = f"{host}.{self.incarnation}".encode()
        self.socket.curve_serverkey = server_public_key
        self.socket.curve_publickey, self.socket.curve_secretkey = keys
        self._backlog: _Backlog[bytes] = _Backlog(self._try_send)

    def connect(self, endpoint: str) -> None:
        """Connect to the supervisor; ZeroMQ reconnects by itself."""
        self.socket.connect(endpoint)

    def receive(self) -> Iterator[Down]:
        """Messages that have arrived, at most one batch. Raises ProtocolError for another version's."""
        for _ in range(RECEIVE_BATCH):
            try:
                payload = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            yield decode_down(payload)

    def send(self, body: AgentEvent | Output | StdinTaken) -> None:
        """Send to the supervisor. Raises LinkError if it takes nothing any more."""
        self._backlog.put(encode_up(self._host, self.incarnation, body))

    @property
    def has_backlog(self) -> bool:
        """Whether the loop should wait until the socket takes more, then call ``flush``."""
        return len(self._backlog) > 0

    def flush(self) -> None:
        """Send what waited."""
        self._backlog.flush()

    def close(self) -> None:
        """Close the socket; what is on its way still leaves (see ``LINGER_MS``)."""
        self.socket.close()

    def _try_send(self, payload: bytes) -> bool:
        try:
            self.socket.send(payload, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True


class RanksLink:
    """The agent's ROUTER for its ranks, private by the mode of the host directory."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.refused = 0
        """Messages dropped because they could not be decoded."""
        self.socket = _bounded(context.socket(zmq.ROUTER))
        self.socket.router_mandatory = True
        self.socket.linger = 0

    def bind(self, path: str) -> None:
        """Listen on the Unix socket ``path``."""
        self.socket.bind(f"ipc://{path}")

    def receive(self) -> Iterator[tuple[bytes, FromRank]]:
        """Routes and messages that have arrived, at most one batch."""
        for _ in range(RECEIVE_BATCH):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                if len(frames) != 2:
                    raise ProtocolError(f"message from a rank: {len(frames)} frames, expected 2")
                message = decode_from_rank(frames[1])
            except ProtocolError:
                self.refused += 1
                continue
            yield frames[0], message

    def send(self, route: bytes, body: FormGroup | OpenGroup | RefuseGroup) -> bool:
        """Answer a rank. False if it is gone or takes nothing: its process is watched elsewhere."""
        try:
            self.socket.send_multipart([route, encode_to_rank(body)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            return False
        return True

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()


def _decode_from_agent(frames: Sequence[zmq.Frame]) -> tuple[int, Up]:
    """The host by whose key a message came, and the message, which must speak for that host."""
    if len(frames) != 2:
        raise ProtocolError(f"message from an agent: {len(frames)} frames, expected 2")
    host = int(str(frames[1].get("User-Id")))
    message = decode_up(frames[1].bytes)
    if message.host != host:
        raise ProtocolError(f"message from the agent of host {host}: spoke for host {message.host}")
    return host, message


def _bounded(socket: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
    socket.sndhwm = socket.rcvhwm = QUEUE_MESSAGES
    socket.maxmsgsize = MAX_MESSAGE_BYTES
    return socket
