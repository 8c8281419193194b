"""The simulation can fail: machines with one deliberate bug each, and the schedule that catches it.

Each bug is planted in a running copy of the code by monkeypatch, never in the product. The seeds are
those that were seen to catch it; if a schedule changes, ``python -m tests.sim.test_mutants`` finds new ones.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from jlaunch.core.agent import AgentMachine
from jlaunch.core.cause import Inquest
from jlaunch.core.detector import Detector
from jlaunch.core.epoch import Epoch
from jlaunch.core.errors import JlaunchError
from jlaunch.core.facts import SupervisorGone
from jlaunch.core.fleet import Fleet
from jlaunch.core.host import HostMachine
from jlaunch.core.lease import Lease
from jlaunch.core.local import LocalRanks
from jlaunch.core.losses import Losses
from jlaunch.core.policy import Reaction
from jlaunch.core.process import ProcessMachine
from jlaunch.core.waits import Waits
from tests.sim.run import simulate
from tests.sim.schedule import draw

Planted = tuple[object, str, Any]


def _renew_from_newest(lease: Lease, beat: int) -> None:
    lease.lapses_at = max(lease.lapses_at, lease._beats[-1][1] + lease._span_s)


def _end_unless_gone(agent: AgentMachine, event: object) -> None:
    if not isinstance(event, SupervisorGone):
        agent._end_all(agent.ranks.now, 0)  # type: ignore[arg-type]


def _always_answer(process: ProcessMachine, order: Any) -> list[Any]:
    return [process.write(order.verdict)] if order.losses else [process.answer(order.verdict, order.question)]


def _no_deeds(*_: object) -> list[Any]:
    return []


def _nothing(*_: object, **__: object) -> None:
    return None


def _root_is_last(inquest: Inquest) -> object:
    return inquest.causes[-1] if inquest.causes else None


MUTANTS: dict[str, tuple[int, Planted]] = {
    "no fence before raise": (0, (Losses, "fence", _no_deeds)),
    "an epoch is over when one rank still lives": (
        0,
        (Epoch, "is_over", property(lambda epoch: epoch._settled >= len(epoch.ranks) - 1)),
    ),
    "a lost host's ranks are gone at once": (0, (HostMachine, "ended_at", lambda *_: 0.0)),
    "a lease counts from the renewal's arrival": (0, (Lease, "renew", _renew_from_newest)),
    "a lease never lapses": (0, (AgentMachine, "_on_lapse", _nothing)),
    "silence alone loses a host": (0, (Fleet, "_pending_since_silence", lambda *_: "because")),
    "a straggler that moves is not excused": (0, (Detector, "_excuse_if_moved", _nothing)),
    "a resumed rank keeps its clock": (0, (Detector, "changed", lambda *_: [])),
    "a question is answered by the supervisor alone": (0, (LocalRanks, "_answer_if_alone", _nothing)),
    "a question is answered twice": (0, (ProcessMachine, "obey", _always_answer)),
    "the last cause is the root": (0, (Inquest, "root", _root_is_last)),
    "who finished early is not blamed": (0, (Waits, "judge_need", _nothing)),
    "the end of the supervisor goes unseen": (0, (AgentMachine, "_on_end", _end_unless_gone)),
    "nobody is killed": (0, (ProcessMachine, "kill", _no_deeds)),
    "deaths are told the supervisor only when confirmed, and as clean": (
        0,
        (Epoch, "_is_consequence", lambda *_: True),
    ),
    "every policy tells and runs on": (0, (sys.modules["jlaunch.core.epoch"], "reaction", lambda *_: Reaction.TELL)),
    "a start timeout while nobody can be heard": (
        0,
        (sys.modules["jlaunch.core.start"].Start, "be_patient", _nothing),
    ),
    "an answer to a lost rank is forgotten": (0, (Losses, "answer", _no_deeds)),
    "silence while asleep is blamed on the others": (0, (Fleet, "forgive", _nothing)),
}


def _catches(seed: int) -> str:
    try:
        simulate(draw(seed))
    except (AssertionError, JlaunchError, KeyError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seed, (where, attribute, bug) = MUTANTS[name]
    assert not _catches(seed), "this seed fails without the bug"
    monkeypatch.setattr(where, attribute, bug)
    assert _catches(seed), f"seed {seed} does not catch it"


def _search(limit: int, find: Callable[[int], str]) -> tuple[int, str]:
    for seed in range(1, limit):
        caught = find(seed)
        if caught:
            return seed, caught
    return 0, "not caught"


def main() -> None:
    """Print the first seed that catches each mutant."""
    wanted = sys.argv[1:]
    for name, (_, (where, attribute, bug)) in MUTANTS.items():
        if wanted and not any(word in name for word in wanted):
            continue
        good = getattr(where, attribute) if not isinstance(where, type) else where.__dict__[attribute]
        setattr(where, attribute, bug)
        seed, caught = _search(1500, _catches)
        setattr(where, attribute, good)
        print(f"{seed:6} {name}: {caught[:110]}", flush=True)


if __name__ == "__main__":
    main()
