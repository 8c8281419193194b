"""Control-plane messages and their codec: typed, bounded, versioned.

Three links, one codec (MessagePack through msgspec, strict types, no pickle):
supervisor <-> agent, agent <-> rank, and the agent's start on its stdin. Output and stdin bytes
travel beside events with their own flow control, so that a flood of output never delays a verdict.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from jlaunch.core.actions import AgentOrder, FormGroup, OpenGroup, RefuseGroup
from jlaunch.core.contract import PROTOCOL_VERSION
from jlaunch.core.errors import ProtocolError
from jlaunch.core.events import AgentEvent
from jlaunch.core.spec import JobSpec

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Bound on one message: 1,024 rendezvous addresses of 64 peers each stay well under it."""

OUTPUT_CHUNK_BYTES = 64 * 1024
"""Largest piece of output in one message; the size of a Linux pipe."""

OUTPUT_WINDOW_BYTES = 1024 * 1024
"""Output that an agent may have in flight, unacknowledged; beyond it, it stops reading pipes."""

OUTPUT_MESSAGE_BYTES = 256
"""What a message of output counts beside its bytes: room for its structs and frames, an estimate. So a window
of very short lines needs no more memory than one of long ones."""


class AgentStart(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent reads from its stdin, once, before anything else. Holds keys: never log it."""

    version: int
    spec: JobSpec
    host: int
    job_dir: str
    endpoint: str
    server_public_key: bytes
    agent_public_key: bytes
    agent_secret_key: bytes


class Output(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A piece of a rank's output, in order per rank and stream. ``stream``: 1 stdout, 2 stderr.

    ``data`` of b'' is the stream's end.
    """

    rank: int
    epoch: int
    stream: int
    data: bytes


def weight_bytes(data: bytes) -> int:
    """What a message with this piece of output takes of the window; the end of a stream takes nothing."""
    return len(data) + OUTPUT_MESSAGE_BYTES if data else 0


class OutputTaken(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The supervisor has passed on output of this ``weight_bytes``: the agent may read as much more."""

    size_bytes: int


class Stdin(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A piece of the launcher's stdin for all local ranks that get it; b'' is the end of file."""

    data: bytes


class StdinTaken(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """All local ranks' pipes took (or dropped) the last Stdin: send the next."""


class Up(msgspec.Struct, frozen=True, kw_only=True):
    """Agent to supervisor."""

    version: int
    host: int
    incarnation: str
    body: AgentEvent | Output | StdinTaken


class Down(msgspec.Struct, frozen=True, kw_only=True):
    """Supervisor to agent."""

    version: int
    body: AgentOrder | OutputTaken | Stdin


class Join(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Rank to agent: devices are open, this is my address."""

    rank: int
    epoch: int
    address: bytes


class Formed(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Rank to agent: all queue pairs are ready."""

    rank: int
    epoch: int


class InitFailed(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Rank to agent: ``init`` failed here."""

    rank: int
    epoch: int
    error: str


class Report(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Rank to agent: ``jlaunch.report``."""

    rank: int
    epoch: int
    numbers: dict[str, float]


class FromRank(msgspec.Struct, frozen=True, kw_only=True):
    """Rank to agent, with the version of the codec."""

    version: int
    body: Join | Formed | InitFailed | Report


class ToRank(msgspec.Struct, frozen=True, kw_only=True):
    """Agent to rank, with the version of the codec."""

    version: int
    body: FormGroup | OpenGroup | RefuseGroup


# ---- the codec -----------------------------------------------------------------------------------
#
# One encoder and one strict decoder for each kind of message. Encoding refuses what the other side
# would refuse. Every function raises ProtocolError and nothing else.


class _Envelope(msgspec.Struct, frozen=True):
    """What every message has in common, whatever its version: used to say which version spoke."""

    version: int


_Message = TypeVar("_Message", Up, Down, FromRank, ToRank, AgentStart)

_encoder = msgspec.msgpack.Encoder()
_envelope_decoder = msgspec.msgpack.Decoder(_Envelope)
_up_decoder = msgspec.msgpack.Decoder(Up)
_down_decoder = msgspec.msgpack.Decoder(Down)
_from_rank_decoder = msgspec.msgpack.Decoder(FromRank)
_to_rank_decoder = msgspec.msgpack.Decoder(ToRank)
_agent_start_decoder = msgspec.msgpack.Decoder(AgentStart)


def encode_up(host: int, incarnation: str, body: AgentEvent | Output | StdinTaken) -> bytes:
    """Message of the agent of ``host`` to the supervisor."""
    _check_chunk(body)
    return _encode(Up(version=PROTOCOL_VERSION, host=host, incarnation=incarnation, body=body))


def encode_down(body: AgentOrder | OutputTaken | Stdin) -> bytes:
    """Message of the supervisor to an agent."""
    _check_chunk(body)
    return _encode(Down(version=PROTOCOL_VERSION, body=body))


def encode_from_rank(body: Join | Formed | InitFailed | Report) -> bytes:
    """Message of a rank to its agent."""
    return _encode(FromRank(version=PROTOCOL_VERSION, body=body))


def encode_to_rank(body: FormGroup | OpenGroup | RefuseGroup) -> bytes:
    """Message of an agent to a rank."""
    return _encode(ToRank(version=PROTOCOL_VERSION, body=body))


def encode_agent_start(start: AgentStart) -> bytes:
    """An agent's start, without the length prefix of the pipe. Holds keys: never log it."""
    return _encode(start)


def decode_up(data: bytes) -> Up:
    """What an agent sent to the supervisor."""
    message = _decode(_up_decoder, data, "message from an agent")
    _check_chunk(message.body)
    return message


def decode_down(data: bytes) -> Down:
    """What the supervisor sent to an agent."""
    message = _decode(_down_decoder, data, "message from the supervisor")
    _check_chunk(message.body)
    return message


def decode_from_rank(data: bytes) -> FromRank:
    """What a rank sent to its agent."""
    return _decode(_from_rank_decoder, data, "message from a rank")


def decode_to_rank(data: bytes) -> ToRank:
    """What an agent sent to a rank."""
    return _decode(_to_rank_decoder, data, "message from the agent")


def decode_agent_start(data: bytes) -> AgentStart:
    """What the supervisor wrote to a new agent's stdin."""
    return _decode(_agent_start_decoder, data, "start of an agent")


def _encode(message: Up | Down | FromRank | ToRank | AgentStart) -> bytes:
    try:
        data = _encoder.encode(message)
    except (TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(f"cannot encode {type(message).__name__}: {error}") from error
    _check_size(len(data), type(message).__name__)
    return data


def _decode(decoder: msgspec.msgpack.Decoder[_Message], data: bytes, what: str) -> _Message:
    _check_size(len(data), what)
    try:
        message = decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        # Another version may well have another shape: say that first, it is the mend.
        _check_version(_version_of(data), what)
        raise ProtocolError(f"{what}: {error}") from error
    _check_version(message.version, what)
    return message


def _version_of(data: bytes) -> int:
    """The version that ``data`` claims; ours if it claims none, so that its own error is shown."""
    try:
        return _envelope_decoder.decode(data).version
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return PROTOCOL_VERSION


def _check_version(version: int, what: str) -> None:
    if version != PROTOCOL_VERSION:
        raise ProtocolError(
            f"{what}: speaks version {version}, expected {PROTOCOL_VERSION}: "
            "install the same jlaunch on every host"
        )


def _check_size(size_bytes: int, what: str) -> None:
    if size_bytes > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"{what}: {size_bytes} bytes, at most {MAX_MESSAGE_BYTES} expected")


def _check_chunk(body: object) -> None:
    if isinstance(body, Output | Stdin) and len(body.data) > OUTPUT_CHUNK_BYTES:
        what = f"{type(body).__name__}: {len(body.data)} bytes in one piece"
        raise ProtocolError(f"{what}, at most {OUTPUT_CHUNK_BYTES} expected")
