"""The simulation can fail: machines with one deliberate bug each, and the schedule that catches it.

Each bug is planted in a running copy of the code by monkeypatch, never in the product. The seeds are
those that were seen to catch it; if schedules change, ``python -m tests.sim.test_mutants`` finds new ones.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from jlaunch.core import agent as agent_module
from jlaunch.core import circles as circles_module
from jlaunch.core import detector as detector_module
from jlaunch.core import epoch as epoch_module
from jlaunch.core.agent import AgentMachine
from jlaunch.core.cause import Inquest
from jlaunch.core.detector import Detector
from jlaunch.core.epoch import Epoch
from jlaunch.core.errors import JlaunchError
from jlaunch.core.facts import SupervisorGone
from jlaunch.core.fleet import Fleet
from jlaunch.core.host import HostMachine
from jlaunch.core.local import LocalRanks
from jlaunch.core.losses import Losses
from jlaunch.core.policy import Reaction
from jlaunch.core.process import ProcessMachine
from jlaunch.core.start import Start
from jlaunch.core.waits import Waits
from tests.sim import test_deadlock as deadlock
from tests.sim import test_found as found
from tests.sim import test_scenarios as scenarios
from tests.sim.run import simulate
from tests.sim.schedule import draw

Planted = tuple[Any, Any, Any]
"""Where, under which name (or key), and what."""


def _always_answer(process: ProcessMachine, order: Any) -> list[Any]:
    return [process.write(order.verdict)] if order.losses else [process.answer(order.verdict, order.question)]


def _no_deeds(*_: object) -> list[Any]:
    return []


def _nothing(*_: object, **__: object) -> None:
    return None


def _limit_at_once(detector: Any, hold_up: Any) -> float:
    paused_at = detector._ranks[hold_up.rank].paused_at
    return float(_limit_of_stragglers(detector, hold_up) if paused_at is None else paused_at)


def _limit_of_stragglers(detector: Any, hold_up: Any) -> float:
    return float(hold_up.still_since + detector._timeouts.straggler_timeout_s)


def _root_is_last(inquest: Inquest) -> object:
    return inquest.causes[-1] if inquest.causes else None


Catcher = int | Callable[[], None]

MUTANTS: dict[str, tuple[Catcher, Planted]] = {
    "no fence before raise": (46, (Losses, "fence", _no_deeds)),
    "an epoch is over when one rank still lives": (
        55,
        (Epoch, "is_over", property(lambda epoch: epoch._settled >= len(epoch.ranks) - 1)),
    ),
    "a lost host's ranks are gone at once": (
        scenarios.test_restart_waits_for_the_lease_of_a_host_that_nobody_can_reach,
        (HostMachine, "ended_at", lambda *_: 0.0),
    ),
    "a lease never lapses": (15, (AgentMachine, "_on_lapse", _nothing)),
    "silence alone loses a host": (45, (Fleet, "_pending_since_silence", lambda *_: "because")),
    "two silent planes lose nobody": (
        scenarios.test_a_host_that_drops_off_both_networks_is_lost_in_time,
        (Fleet, "_pending_since_silence", _nothing),
    ),
    "a straggler that moves is not excused": (2, (Detector, "_excuse_if_moved", _nothing)),
    "a pause has no limit but the deadline": (69, (Detector, "_limit_at", _limit_at_once)),
    "a pause has the straggler's limit": (
        scenarios.test_a_late_rank_that_is_paused_has_the_pause_limit,
        (Detector, "_limit_at", _limit_of_stragglers),
    ),
    "calls that do not belong together are none": (
        lambda: deadlock.test_a_deadlock_is_named_long_before_anybody_is_stuck(1),
        (detector_module, "deadlock_in", lambda *_: None),
    ),
    "a silent link is a deadlock": (109, (circles_module, "_are_partners", lambda *_: False)),
    "a question is answered by the supervisor alone": (9, (LocalRanks, "_answer_if_alone", _nothing)),
    "a question is answered twice": (7, (ProcessMachine, "obey", _always_answer)),
    "the last cause is the root": (
        scenarios.test_a_stop_request_after_a_loss_is_not_the_cause,
        (Inquest, "root", _root_is_last),
    ),
    "who finished early is not blamed": (23, (Waits, "judge_need", _nothing)),
    "the end of the supervisor goes unseen": (
        scenarios.test_a_killed_supervisor_leaves_nobody,
        (agent_module._HANDLERS, SupervisorGone, _nothing),
    ),
    "nobody is killed": (4, (ProcessMachine, "kill", _no_deeds)),
    "every death is a consequence": (7, (Epoch, "_is_consequence", lambda *_: True)),
    "every policy tells and runs on": (6, (epoch_module, "reaction", lambda *_: Reaction.TELL)),
    "a start timeout while nobody can be heard": (
        found.test_a_start_timeout_is_not_blamed_on_ranks_when_the_supervisor_slept,
        (Start, "be_patient", _nothing),
    ),
}


def _plant(patch: pytest.MonkeyPatch, planted: Planted) -> None:
    where, name, bug = planted
    if isinstance(where, dict):
        patch.setitem(where, name, bug)
    else:
        patch.setattr(where, name, bug)


def _catches(catcher: Catcher) -> str:
    """What the catcher says against the machines as they are; '' if nothing."""
    try:
        if isinstance(catcher, int):
            simulate(draw(catcher))
        else:
            catcher()
    except (AssertionError, JlaunchError, KeyError, StopIteration) as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fine without the bug, caught with it."""
    catcher = MUTANTS[name][0]
    assert not _catches(catcher)
    _plant(monkeypatch, MUTANTS[name][1])
    assert _catches(catcher), f"{catcher} does not catch it"


def main() -> None:
    """Print the first seed that catches each mutant (that has a word of the command line in its name)."""
    words = sys.argv[1:]
    for name, (_, planted) in MUTANTS.items():
        if words and not any(word in name for word in words):
            continue
        with pytest.MonkeyPatch.context() as patch:
            _plant(patch, planted)
            found = next(
                ((seed, hit) for seed in range(1, 1000) if (hit := _catches(seed))), (0, "not caught")
            )
        print(f"{found[0]:6} {name}: {found[1][:100]}", flush=True)


if __name__ == "__main__":
    main()
