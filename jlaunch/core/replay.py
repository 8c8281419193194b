"""A recorded run, fed to a fresh job machine: does it decide as it did? Values in, values out.

Rules of this file. The event log holds all that the machine was fed, in order, each with the moment at
which it was handled; the job as it was asked for; and the seed of its random numbers. So a run can be had
again without a process, and a decision looked at with a debugger. What is not in the log (the addresses of
the ranks, their environment) decides nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, get_args

import msgspec

from jlaunch.core.actions import EndJob, RecordVerdict
from jlaunch.core.contract import Collective
from jlaunch.core.errors import JlaunchError
from jlaunch.core.events import AgentEvent, AgentHeard, DeadlineReached, Event, JobEvent, JobStarted
from jlaunch.core.job import JobMachine
from jlaunch.core.spec import JobSpec

DECISIONS = ("RecordVerdict", "EndJob")
"""Kinds of lines that the machine wrote; all others it was fed."""

_COLLECTIVES = {collective.word: collective for collective in Collective}


class ReplayError(JlaunchError):
    """A log that cannot be replayed."""


class Decision(NamedTuple):
    """A verdict or the end, as plain values: its moment, its kind, its fields."""

    t: float
    kind: str
    fields: Mapping[str, Any]


class Replayed(NamedTuple):
    """One job of a log: what was decided then, and now."""

    job: str
    recorded: tuple[Decision, ...]
    made: tuple[Decision, ...]

    @property
    def first_difference(self) -> int | None:
        """Index of the first decision that differs; None if none does."""
        for index, (then, now) in enumerate(zip(self.recorded, self.made, strict=False)):
            if (then.kind, then.fields) != (now.kind, now.fields):
                return index
        shorter = min(len(self.recorded), len(self.made))
        return None if len(self.recorded) == len(self.made) else shorter


def spec_record(spec: JobSpec) -> Any:
    """The job as it goes into the log: plain values, without its variables, which may be secret."""
    return plain(msgspec.structs.replace(spec, env=()))


def plain(value: object) -> Any:
    """A value as a line holds it: words for enumerations, lengths for bytes, text for numbers JSON lacks."""
    if isinstance(value, bytes):
        return {"size_bytes": len(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "name") and hasattr(value, "value"):
        return value.value if isinstance(value.value, str) else value.name.lower()
    return value


def replay(lines: Iterable[Mapping[str, Any]]) -> list[Replayed]:
    """Every job of a log, in order. Raises ReplayError for a line that is none, or a log without a job."""
    return [_replay_one(lines_of_job) for lines_of_job in _jobs(lines)]


def _jobs(lines: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    job: list[Mapping[str, Any]] = []
    for line in lines:
        if line.get("kind") == "JobStarted" and job:
            yield job
            job = []
        job.append(line)
    if not job:
        raise ReplayError("found no line, expected an event log as --events writes it")
    yield job


def _replay_one(lines: list[Mapping[str, Any]]) -> Replayed:
    start = lines[0]
    if start.get("kind") != "JobStarted" or "spec" not in start or "seed" not in start:
        raise ReplayError(
            f"found a line of kind {start.get('kind')!r} where the job begins, expected JobStarted with "
            "spec and seed: was the log written by an older jlaunch, or its beginning cut off?"
        )
    machine = JobMachine(_revived(start["spec"], JobSpec), rng=random.Random(start["seed"]))
    recorded: list[Decision] = []
    made: list[Decision] = []
    for line in lines:
        for woke_at in line.get("woke", ()):
            made += _decided(machine, DeadlineReached(), woke_at)
        if line["kind"] in DECISIONS:
            recorded.append(Decision(line["t"], line["kind"], _fields(line)))
        else:
            made += _decided(machine, _event(line), line["t"])
    return Replayed(str(start.get("job", "")), tuple(recorded), tuple(made))


def _decided(machine: JobMachine, event: JobEvent, t: float) -> list[Decision]:
    return [
        Decision(t, type(action).__name__, as_fields(action))
        for action in machine.handle(event, t)
        if isinstance(action, RecordVerdict | EndJob)
    ]


def as_fields(record: msgspec.Struct) -> dict[str, Any]:
    """The fields of a line for this record. A field named ``kind`` becomes ``verdict_kind``."""
    fields = {name: plain(getattr(record, name)) for name in record.__struct_fields__}
    if "kind" in fields:
        fields["verdict_kind"] = fields.pop("kind")
    return fields


_KINDS: dict[str, type[Event]] = {
    kind.__name__: kind for kind in (*get_args(JobEvent), *get_args(AgentEvent))
}
_HEAD = ("v", "at", "t", "kind", "woke", "agent", "job", "spec", "seed")


def _fields(line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name not in _HEAD}


def _event(line: Mapping[str, Any]) -> Any:
    kind = _KINDS.get(line["kind"])
    if kind is None:
        raise ReplayError(f"found a line of kind {line['kind']!r}, expected one that docs/events.md names")
    if kind is JobStarted:
        return JobStarted()
    event = _revived(_fields(line), kind)
    if "agent" not in line:
        return event
    host, incarnation = line["agent"]
    return AgentHeard(host=host, incarnation=incarnation, event=event)


def _revived(fields: Any, kind: type[Any]) -> Any:
    try:
        return msgspec.convert(_revive(fields) | {"type": kind.__name__}, kind, strict=False)
    except (msgspec.ValidationError, TypeError) as error:
        raise ReplayError(f"found a {kind.__name__} that is none: {error}") from error


def _revive(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        if value.keys() == {"size_bytes"}:
            return bytes(value["size_bytes"])
        return {key: _revive(item, key if name != "numbers" else "_s") for key, item in value.items()}
    if isinstance(value, list):
        return [_revive(item) for item in value]
    if name == "collective":
        return int(_COLLECTIVES[value])
    if name.endswith("_s") and value in ("inf", "-inf", "nan"):
        return float(value)
    return value
