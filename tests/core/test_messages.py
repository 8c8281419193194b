"""The codec: what one side encodes the other side decodes, and nothing else gets through."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jlaunch.core import actions, events, messages
from jlaunch.core.contract import PROTOCOL_VERSION, Collective, Reason, VerdictKind
from jlaunch.core.errors import ProtocolError
from jlaunch.core.spec import HostSpec, JobSpec, Timeouts

LOSS = events.Loss(rank=2, reason=Reason.KILLED, completed_seq=7)
WAIT = events.Wait(collective=Collective.ALL_SUM, seq=9, size_bytes=64, waited_s=1.5, waiting_for=(1, 3))
SAMPLE = events.Sample(progress=4, reports=1, completed_seq=8, paused=False, output_blocked=True, wait=WAIT)
SPEC = JobSpec(
    job="j1",
    program=("train.py", "--lr", "1e-3"),
    hosts=(HostSpec(name="a", ips=("10.0.0.1",), rdma=((), ("rdma_en1",))),),
    placement=(0, 0),
    cwd="/tmp/ä b",
    timeouts=Timeouts(max_pause_s=math.inf),
)
SAMPLES: dict[str, object] = {
    "int": 3,
    "str": "text",
    "bytes": b"\x00\xff",
    "bool": True,
    "float": 2.5,
    "int | None": 5,
    "str | None": "x",
    "Wait": WAIT,
    "Wait | None": WAIT,
    "dict[int, Wait]": {1: WAIT},
    "Sample": SAMPLE,
    "Loss": LOSS,
    "dict[str, float]": {"step": 3.0, "loss": math.pi},
    "tuple[int, ...]": (0, 1),
    "tuple[str, ...]": ("last", "lines"),
    "tuple[bytes, ...]": (b"a", b""),
    "tuple[Loss, ...]": (LOSS,),
    "VerdictKind": VerdictKind.RAISE,
}


def example_of(kind: type[msgspec.Struct]) -> typing.Any:
    """One value of ``kind`` with every field set."""
    return kind(**{field: SAMPLES[str(note)] for field, note in all_annotations(kind).items()})


def all_annotations(kind: type) -> dict[str, object]:
    notes: dict[str, object] = {}
    for base in reversed(kind.__mro__):
        notes.update(
            {k: v for k, v in vars(base).get("__annotations__", {}).items() if not k.startswith("_")}
        )
    return notes


@pytest.mark.parametrize("kind", typing.get_args(events.AgentEvent))
def test_every_agent_event_travels_up(kind: type[msgspec.Struct]) -> None:
    event = example_of(kind)
    up = messages.decode_up(messages.encode_up(1, "abc", event))
    assert up == messages.Up(version=PROTOCOL_VERSION, host=1, incarnation="abc", body=event)
    assert type(up.body) is kind


@pytest.mark.parametrize("kind", typing.get_args(actions.AgentOrder))
def test_every_order_travels_down(kind: type[msgspec.Struct]) -> None:
    order = example_of(kind)
    assert messages.decode_down(messages.encode_down(order)).body == order


@pytest.mark.parametrize("kind", [messages.Join, messages.Formed, messages.InitFailed, messages.Report])
def test_every_rank_message_travels(kind: type[msgspec.Struct]) -> None:
    body = example_of(kind)
    assert messages.decode_from_rank(messages.encode_from_rank(body)).body == body


@pytest.mark.parametrize("kind", [actions.FormGroup, actions.OpenGroup, actions.RefuseGroup])
def test_every_answer_to_a_rank_travels(kind: type[msgspec.Struct]) -> None:
    body = example_of(kind)
    assert messages.decode_to_rank(messages.encode_to_rank(body)).body == body


def start_with(version: int) -> messages.AgentStart:
    return messages.AgentStart(
        version=version,
        spec=SPEC,
        host=0,
        job_dir="/dev/shm/x",
        endpoint="ipc:///dev/shm/x/supervisor.ipc",
        server_public_key=b"s" * 40,
        agent_public_key=b"p" * 40,
        agent_secret_key=b"k" * 40,
    )


def test_agent_start_travels_whole() -> None:
    start = start_with(PROTOCOL_VERSION)
    assert messages.decode_agent_start(messages.encode_agent_start(start)) == start


def test_flow_control_travels() -> None:
    for body in (messages.OutputTaken(size_bytes=9), messages.Stdin(data=b"x")):
        assert messages.decode_down(messages.encode_down(body)).body == body
    for up in (messages.StdinTaken(), messages.Output(rank=0, epoch=1, stream=2, data=b"")):
        assert messages.decode_up(messages.encode_up(0, "i", up)).body == up


def test_another_version_is_named_even_if_its_shape_is_unknown() -> None:
    alien = msgspec.msgpack.encode({"version": 7, "payload": [1, 2]})
    with pytest.raises(ProtocolError, match="speaks version 7, expected 1"):
        messages.decode_up(alien)
    with pytest.raises(ProtocolError, match="speaks version 9"):
        messages.decode_agent_start(messages.encode_agent_start(start_with(9)))


@pytest.mark.parametrize(
    ("field", "value", "names"),
    [
        ("rank", "2", r"\$\.body\.rank"),
        ("rank", 2.0, r"\$\.body\.rank"),
        ("status", None, r"\$\.body\.status"),
        ("type", "RankVanished", "RankVanished"),
        ("tail", [1], r"\$\.body\.tail"),
    ],
)
def test_wrong_types_are_named(field: str, value: object, names: str) -> None:
    body: dict[str, object] = {"type": "RankExited", "rank": 2, "epoch": 1, "status": 0}
    body[field] = value
    data = msgspec.msgpack.encode({"version": 1, "host": 0, "incarnation": "i", "body": body})
    with pytest.raises(ProtocolError, match=names):
        messages.decode_up(data)


def test_too_large_is_refused_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    report = messages.Report(rank=0, epoch=1, numbers={"x" * 100: 1.0})
    data = messages.encode_from_rank(report)
    monkeypatch.setattr(messages, "MAX_MESSAGE_BYTES", 64)
    with pytest.raises(ProtocolError, match="at most 64 expected"):
        messages.encode_from_rank(report)
    with pytest.raises(ProtocolError, match=r"message from a rank: \d+ bytes"):
        messages.decode_from_rank(data)


def test_a_piece_of_output_is_bounded() -> None:
    big = messages.Output(rank=0, epoch=1, stream=1, data=b"x" * (messages.OUTPUT_CHUNK_BYTES + 1))
    with pytest.raises(ProtocolError, match="in one piece"):
        messages.encode_up(0, "i", big)
    raw = msgspec.msgpack.encode(messages.Up(version=1, host=0, incarnation="i", body=big))
    with pytest.raises(ProtocolError, match="in one piece"):
        messages.decode_up(raw)


def test_what_cannot_be_encoded_is_a_protocol_error() -> None:
    huge = messages.OutputTaken(size_bytes=2**70)
    with pytest.raises(ProtocolError, match="cannot encode Down"):
        messages.encode_down(huge)


DECODERS: list[Callable[[bytes], object]] = [
    messages.decode_up,
    messages.decode_down,
    messages.decode_from_rank,
    messages.decode_to_rank,
    messages.decode_agent_start,
]


@given(st.binary(max_size=200))
def test_noise_is_a_protocol_error_and_nothing_else(data: bytes) -> None:
    for decode in DECODERS:
        with pytest.raises(ProtocolError):
            decode(data)


@given(st.integers(min_value=0), st.binary(min_size=1, max_size=4))
def test_a_damaged_message_never_raises_anything_else(where: int, damage: bytes) -> None:
    event = events.RankExited(rank=1, epoch=1, status=0, tail=("höre",))
    whole = bytearray(messages.encode_up(0, "i", event))
    at = where % len(whole)
    whole[at : at + len(damage)] = damage
    try:
        messages.decode_up(bytes(whole))
    except ProtocolError:
        pass
