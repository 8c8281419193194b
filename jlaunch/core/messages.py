"""Control-plane messages and their codec: typed, bounded, versioned.

Three links, one codec (MessagePack through msgspec, strict types, no pickle):
supervisor <-> agent, agent <-> rank, and the agent's start on its stdin. Output and stdin bytes
travel beside events with their own flow control, so that a flood of output never delays a verdict.
"""

from __future__ import annotations

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


class OutputTaken(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The supervisor has passed on so many bytes of output: the agent may read as many more."""

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
