"""Named scenarios: ranks that wait for one another in calls that do not belong together."""

from __future__ import annotations

import pytest

from jlaunch.core.contract import Reason
from jlaunch.core.spec import Policy
from tests.sim.by_hand import WAITING, changed, end_of, schedule
from tests.sim.run import simulate
from tests.sim.schedule import TIMEOUTS

DEADLOCK = {(1, 1): changed(deadlock_step=3)}


@pytest.mark.parametrize("per_host", [1, 3])
def test_a_deadlock_is_named_long_before_anybody_is_stuck(per_host: int) -> None:
    """Rank 1 receives from a rank that is in a sum: all are told, in a few deadlines, and nobody is killed."""
    world = simulate(schedule(Policy.RAISE, hosts=3 // per_host, per_host=per_host, plans=DEADLOCK))
    assert end_of(world).code == 76
    assert end_of(world).cause.startswith("deadlock: ")
    assert "rank 1 in recv #3 waits for 2" in end_of(world).cause
    assert {process.status for process in world.processes()} == {0}
    assert not any(process.is_ended_by_us for process in world.processes())
    for process in world.processes():
        assert process.rank not in process.losses or len(process.losses) > 1
        assert {loss.reason for loss in process.losses.values()} == {Reason.DESYNC}
    moment = next(at for at, text in world.supervisor.machine.happenings if "deadlock" in text)
    began = 0.1 + 3 * 0.45
    assert moment <= began + 3 * TIMEOUTS.deadline_s + 1.0
    assert moment < began + TIMEOUTS.straggler_timeout_s


def test_a_restart_mends_a_deadlock_that_does_not_come_again() -> None:
    world = simulate(schedule(Policy.RESTART, plans=DEADLOCK))
    assert end_of(world).code == 0
    assert world.truth.last_epoch == 2


def test_a_deadlock_with_a_paused_member_is_found_when_it_runs_again() -> None:
    """While rank 2 is stopped nobody can say that nothing will come."""
    fault = (0.6, "freeze rank in step", 2, 3.0)
    world = simulate(schedule(Policy.WAIT, fault, plans=DEADLOCK, timeouts=WAITING))
    assert end_of(world).code == 76
    assert end_of(world).cause.startswith("deadlock: ")
