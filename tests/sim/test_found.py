"""Every bug that a seed has found, as a scenario with a name."""

from __future__ import annotations

from jlaunch.core.spec import Policy
from tests.sim.by_hand import changed, end_of, schedule
from tests.sim.run import simulate


def test_a_start_timeout_is_not_blamed_on_ranks_that_cannot_be_heard() -> None:
    """Seed 720: the control network was away while the ranks joined."""
    plan = schedule(
        Policy.RAISE,
        (0.5, "cut", 1, 7.8),
        plans={(1, 1): changed(init_delay_s=2.0)},
        kind="benign",
    )
    assert end_of(simulate(plan)).code == 0


def test_a_start_timeout_is_not_blamed_on_ranks_when_the_supervisor_slept() -> None:
    """Seed 6722."""
    plan = schedule(
        Policy.RAISE,
        (0.5, "freeze supervisor", 0, 8.7),
        plans={(1, 1): changed(init_delay_s=2.0)},
        kind="benign",
    )
    assert end_of(simulate(plan)).code == 0


def test_an_unkillable_grandchild_ends_the_wait() -> None:
    """Seed 1721: the rank had ended by itself, what it left behind could not be killed."""
    plan = changed(is_unkillable=True, has_grandchild=True, obeys_term=False)
    world = simulate(schedule(Policy.RAISE, plans={(1, 1): plan}))
    assert end_of(world).code == 71


def test_an_agent_lost_before_the_first_epoch_ends_the_job() -> None:
    """Seed 464: whatever the policy, without its host the job cannot begin."""
    world = simulate(schedule(Policy.RAISE, (0.2, "kill agent", 0, 0.0), is_local=True))
    assert end_of(world).code == 72
    assert world.processes() == [] or world.truth.last_epoch == 1


def test_an_init_failure_under_stop_keeps_its_cause() -> None:
    """Seed 763: the rank that failed was stopped by us; our signal is not its exit code."""
    world = simulate(schedule(Policy.STOP, plans={(1, 1): changed(init_error="no device")}))
    assert end_of(world).code in (1, 69)
    assert end_of(world).cause == "rank 1 on h1 failed in init: no device"
