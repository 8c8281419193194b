"""The flight recorder's lines."""

from __future__ import annotations

import json
import math
import os
import threading
from pathlib import Path

import msgspec
import pytest

from jlaunch.core.actions import RecordVerdict
from jlaunch.core.contract import Collective, Reason, VerdictKind
from jlaunch.core.errors import ConfigError
from jlaunch.core.events import DeadlineAsked, Loss, RankJoined, RankPaused, Wait
from jlaunch.io.events_file import BACKLOG_BYTES, EventsFile


class FakeClock:
    def __init__(self) -> None:
        self.t = 100.0

    def now(self) -> float:
        return self.t

    def unix_time(self) -> float:
        return self.t + 1e9


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_event_is_one_line_at_once(tmp_path: Path) -> None:
    clock = FakeClock()
    file = EventsFile(str(tmp_path / "events"), clock)
    clock.t += 1.5
    assert file.write(RankPaused(rank=2, epoch=1, signal=19)) is None
    assert lines(tmp_path / "events") == [
        {"v": 1, "at": 1e9 + 101.5, "t": 1.5, "kind": "RankPaused", "rank": 2, "epoch": 1, "signal": 19}
    ]
    file.close()


def test_words_of_the_contract_are_written_as_words(tmp_path: Path) -> None:
    file = EventsFile(str(tmp_path / "events"), FakeClock())
    wait = Wait(collective=Collective.ALL_SUM, seq=9, size_bytes=16, waited_s=math.inf, waiting_for=(2,))
    file.write(DeadlineAsked(rank=0, epoch=1, question=1, wait=wait))
    file.write(
        RecordVerdict(
            verdict=3,
            kind=VerdictKind.RAISE,
            epoch=1,
            ranks=(0,),
            why="lost",
            losses=(Loss(rank=2, reason=Reason.KILLED),),
        )
    )
    asked, verdict = lines(tmp_path / "events")
    assert asked["wait"]["collective"] == "all_sum"  # type: ignore[index]
    assert asked["wait"]["waited_s"] == "inf"  # type: ignore[index]
    assert (verdict["kind"], verdict["verdict_kind"]) == ("RecordVerdict", "raise")
    assert verdict["losses"][0]["reason"] == "killed"  # type: ignore[index]
    file.close()


def test_addresses_are_recorded_by_their_size(tmp_path: Path) -> None:
    file = EventsFile(str(tmp_path / "events"), FakeClock())
    file.write(RankJoined(rank=0, epoch=1, address=b"secret"))
    assert lines(tmp_path / "events")[0]["address"] == {"size_bytes": 6}
    file.close()


def test_a_file_that_cannot_be_opened_is_the_users_fault(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--events"):
        EventsFile(str(tmp_path / "missing" / "events"), FakeClock())


def test_a_full_disk_is_told_once() -> None:
    file = EventsFile("/dev/full", FakeClock())
    event: msgspec.Struct = RankPaused(rank=0, epoch=1)
    why = file.write(event)
    assert why is not None
    assert "No space left" in why
    assert file.write(event) is None


def test_a_fifo_needs_no_reader_and_loses_nothing_to_a_slow_one(tmp_path: Path) -> None:
    path = tmp_path / "events"
    os.mkfifo(path)
    file = EventsFile(str(path), FakeClock())
    count = 2000
    for rank in range(count):
        assert file.write(RankPaused(rank=rank, epoch=1)) is None
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    got: list[bytes] = []

    def read() -> None:
        os.set_blocking(reader, True)
        while piece := os.read(reader, 65536):
            got.append(piece)

    thread = threading.Thread(target=read)
    thread.start()
    file.close()
    thread.join()
    os.close(reader)
    assert [json.loads(line)["rank"] for line in b"".join(got).splitlines()] == list(range(count))


def test_a_fifo_that_nobody_reads_is_given_up_within_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "events"
    os.mkfifo(path)
    file = EventsFile(str(path), FakeClock())
    why = None
    for _ in range(BACKLOG_BYTES // 50):
        why = why or file.write(RankPaused(rank=0, epoch=1))
    assert why is not None
    assert "takes nothing" in why
