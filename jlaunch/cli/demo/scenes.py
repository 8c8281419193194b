"""The scenes: what is done to rank 2 under each policy, what must follow, and how it is told."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil

from jlaunch.cli.demo.stage import Line, SceneFailed, Stage

RANKS = 4
LOST = 2
"""The rank that something is done to."""

FIRST_EPOCH = 1

MANY_TURNS = 3000
"""More than are ever reached; still an end, should the demo itself be killed."""

PAUSE_S = 3.0
"""How long the pause that is waited out lasts: three deadlines."""

SURVIVORS = tuple(rank for rank in range(RANKS) if rank != LOST)


@dataclass
class Story:
    """What happened in a scene, a sentence each, in milliseconds since the deed."""

    began_at: float = field(default_factory=time.monotonic)
    lines: list[tuple[float, str]] = field(default_factory=list)

    def add(self, text: str, at: float | None = None) -> None:
        """Add a sentence; ``at`` is monotonic seconds, now if it is not given."""
        self.lines.append(((at if at is not None else time.monotonic()) - self.began_at, text))


@dataclass(frozen=True)
class Scene:
    """One policy shown. ``act`` plays it and raises SceneFailed where jlaunch does not keep its word."""

    policy: str
    title: str
    options: tuple[str, ...]
    turns: int
    act: Callable[[Stage], Story]


def scenes() -> tuple[Scene, ...]:
    """All scenes, in the order in which they are shown."""
    return (
        Scene("raise", "rank 2 is killed: the others get an exception", (), MANY_TURNS, _raise),
        Scene("wait", "rank 2 is paused for 3 s: the others wait, and nothing is lost", (), 60, _wait),
        Scene(
            "restart", "rank 2 is killed: all ranks start again", ("--restart-backoff", "1s"), 60, _restart
        ),
        Scene("stop", "rank 2 is killed: the others are stopped cleanly", (), MANY_TURNS, _stop),
    )


def _raise(stage: Stage) -> Story:
    story = _strike(stage, signal.SIGKILL, "SIGKILL to rank 2")
    for caught in _all_tell(stage, "caught", SURVIVORS, "PeerLost in every survivor"):
        _require(caught["reasons"] == {str(LOST): "killed"}, f"'killed', found {caught['reasons']}")
        where = f"{caught['collective']} #{caught['seq']}"
        story.add(f"rank {caught['rank']} caught PeerLost in {where}: rank 2 was killed", caught["at"])
    return _ended(stage, story, 128 + signal.SIGKILL)


def _wait(stage: Stage) -> Story:
    pids = _pids(stage)
    story = _strike(stage, signal.SIGSTOP, "SIGSTOP to rank 2")
    paused = stage.wait(lambda: stage.event("RankPaused", rank=LOST), "the pause in the event log")
    story.add("jlaunch knows: rank 2 is paused, not dead", paused["seen_at"])
    cpu_s = _cpu_s(pids)
    watched_at = time.monotonic()
    asked = stage.wait(
        lambda: stage.event("RecordVerdict", verdict_kind="keep_waiting"), "the verdict: keep waiting"
    )
    story.add("the deadline has passed, the others ask; the verdict: keep waiting", asked["seen_at"])
    stage.let_pass(story.began_at + PAUSE_S - time.monotonic())
    share = (_cpu_s(pids) - cpu_s) / (time.monotonic() - watched_at) / len(SURVIVORS)
    story.add(f"the others rest meanwhile: {100 * share:.1f} % of a core each")
    os.kill(pids[LOST], signal.SIGCONT)
    story.add("SIGCONT to rank 2")
    back = max(line["at"] for line in _all_tell(stage, "turn", SURVIVORS, "the collective goes on"))
    story.add("the others are through the collective in which they waited", back)
    done = _all_tell(stage, "done", range(RANKS), "every rank done")
    _require(all(line["right"] for line in done), "every sum right")
    story.add("all ranks are done, every sum was right", max(line["at"] for line in done))
    return _ended(stage, story, 0)


def _restart(stage: Stage) -> Story:
    story = _strike(stage, signal.SIGKILL, "SIGKILL to rank 2")
    again = stage.wait(
        lambda: _from_all(stage.told_by("up", epoch=FIRST_EPOCH + 1), range(RANKS)), "all ranks up again"
    )
    story.add(
        "all ranks have started again, and are past their first collective", max(line["at"] for line in again)
    )
    done = _all_tell(stage, "done", range(RANKS), "every rank done")
    _require(all(line["right"] for line in done), "every sum right")
    story.add("all ranks are done, every sum was right", max(line["at"] for line in done))
    return _ended(stage, story, 0)


def _stop(stage: Stage) -> Story:
    story = _strike(stage, signal.SIGKILL, "SIGKILL to rank 2")
    for line in _all_tell(stage, "stopping", SURVIVORS, "JobStopping in every survivor"):
        story.add(f"rank {line['rank']} got JobStopping", line["at"])
    last = max(line["at"] for line in _all_tell(stage, "finally", SURVIVORS, "finally ran in every survivor"))
    story.add("their finally blocks have run", last)
    return _ended(stage, story, 128 + signal.SIGKILL)


def _strike(stage: Stage, number: signal.Signals, text: str) -> Story:
    """Send rank 2 a signal once all ranks are in the loop; the story begins there."""
    pid = _pids(stage)[LOST]
    story = Story()
    os.kill(pid, number)
    story.add(text, story.began_at)
    return story


def _pids(stage: Stage) -> dict[int, int]:
    """Process ids by rank, once all ranks have finished their first collective."""
    up = stage.wait(lambda: _from_all(stage.told_by("up", epoch=FIRST_EPOCH), range(RANKS)), "all ranks up")
    return {line["rank"]: line["pid"] for line in up}


def _all_tell(stage: Stage, what: str, ranks: range | tuple[int, ...], expected: str) -> list[Line]:
    """The first such line of each of ``ranks``, in the order in which they came."""
    found: list[Line] = stage.wait(lambda: _from_all(stage.told_by(what), ranks), expected)
    return sorted(found, key=lambda line: float(line["at"]))


def _from_all(lines: list[Line], ranks: range | tuple[int, ...]) -> list[Line]:
    """The first line of each rank once every rank has one, else nothing."""
    first = {line["rank"]: line for line in reversed(lines) if line["rank"] in ranks}
    return list(first.values()) if len(first) == len(ranks) else []


def _cpu_s(pids: dict[int, int]) -> float:
    """Processor time that the survivors have used so far, in seconds."""
    times = [psutil.Process(pids[rank]).cpu_times() for rank in SURVIVORS]
    return sum(spent.user + spent.system for spent in times)


def _ended(stage: Stage, story: Story, expected: int) -> Story:
    code, out = stage.end()
    if code != expected:
        raise SceneFailed(f"exit code {expected}: found {code}; jlaunch printed:\n{out}")
    last = out.splitlines()[-1:] if code else []
    why = [line.removeprefix("jlaunch: ") for line in last]
    story.add(": ".join([f"jlaunch has ended with exit code {code}", *why]))
    return story


def _require(condition: bool, expected: str) -> None:
    if not condition:
        raise SceneFailed(f"{expected}: it was not so")
