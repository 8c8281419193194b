"""Named scenarios: the races that have one right answer.

Each is a schedule written by hand and run through the whole simulated job.
"""

from __future__ import annotations

import pytest

from jlaunch.core.contract import Reason, VerdictKind
from jlaunch.core.spec import Policy
from tests.sim.by_hand import WAITING, changed, end_of, schedule
from tests.sim.run import simulate
from tests.sim.schedule import TIMEOUTS

# ---- (a) loss against clean end ------------------------------------------------------------------


@pytest.mark.parametrize("policy", [Policy.RAISE, Policy.WAIT, Policy.STOP, Policy.RESTART])
def test_ranks_that_end_one_after_another_raise_nothing(policy: Policy) -> None:
    """(a) Exit 0 alone raises nothing: the collectives up to the last completed one are finished."""
    world = simulate(schedule(policy, per_host=4))
    assert end_of(world).code == 0
    assert world.truth.needs == []
    assert world.truth.last_epoch == 1


@pytest.mark.parametrize("step", [1, 3, 6])
def test_a_rank_that_finishes_early_is_named(step: int) -> None:
    """(a) A collective that needs a rank which has ended with 0 raises, and that rank is to blame."""
    world = simulate(schedule(Policy.RAISE, plans={(1, 1): changed(early_exit_step=step)}))
    assert end_of(world).code == 73
    assert "rank 1 finished while rank" in end_of(world).cause
    assert f"waits in all_sum #{step}" in end_of(world).cause
    assert 1 in {lost for _, lost in world.truth.needs}


def test_a_loss_carries_how_far_the_lost_rank_got() -> None:
    """(a) A rank killed between two collectives: the one that it had completed raises in nobody."""
    world = simulate(schedule(Policy.RAISE, plans={(2, 1): changed(steps=3, exit_status=-9)}))
    assert end_of(world).code == 137
    survivors = [process for process in world.processes() if process.rank != 2]
    assert {process.completed for process in survivors} == {3}
    assert {loss.completed_seq for process in survivors for loss in process.losses.values()} == {3}


# ---- (b) fence first -----------------------------------------------------------------------------


@pytest.mark.parametrize("is_far", [False, True])
def test_a_paused_rank_is_fenced_before_the_others_raise(is_far: bool) -> None:
    """(b) STOP in the paused rank's block, acknowledged, before any RAISE; then it is ended."""
    hosts, per_host = (3, 1) if is_far else (1, 3)
    plan = schedule(Policy.RAISE, (0.6, "freeze rank in step", 1, 2.0), hosts=hosts, per_host=per_host)
    log: list[str] = []
    world = simulate(plan, log=log)
    assert end_of(world).code == 75
    assert "rank 1 on h" in end_of(world).cause
    assert "paused for 3." in end_of(world).cause
    fence = next(i for i, line in enumerate(log) if "WriteBlock(rank=1" in line and "STOP" in line)
    raised = next(i for i, line in enumerate(log) if "WriteBlock(rank=0" in line and "RAISE" in line)
    assert fence < raised
    lost = world.hosts[world.spec.placement[1]].processes[(1, 1)]
    assert lost.is_ended_by_us
    assert world.hosts[0].processes[(0, 1)].losses[1].reason is Reason.PAUSED


def test_a_fence_that_nobody_answers_for_is_given_up() -> None:
    """(b) The paused rank's agent is frozen too: the others are told all the same."""
    plan = schedule(Policy.RAISE, (0.6, "freeze rank in step", 1, 2.0), (4.5, "freeze agent", 1, 60.0))
    world = simulate(plan)
    assert end_of(world).code in (75, 68)
    assert world.hosts[0].processes[(0, 1)].kind is VerdictKind.RAISE


def test_a_late_rank_that_is_paused_has_the_pause_limit() -> None:
    """It was asked about before; from the pause on, the shorter limit counts, from the pause's start."""
    plan = schedule(
        Policy.RAISE, (3.5, "freeze rank", 1, 50.0), plans={(1, 1): changed(late_step=2, late_s=30.0)}
    )
    world = simulate(plan)
    assert end_of(world).code == 75
    moment = next(at for at, text in world.supervisor.machine.happenings if "limit 3 s" in text)
    assert moment == pytest.approx(3.5 + TIMEOUTS.max_pause_s, abs=0.2)


def test_a_pause_that_nobody_waits_for_costs_nothing() -> None:
    """The limit counts from the pause's start but bites only while somebody waits."""
    plan = schedule(
        Policy.RAISE,
        (0.9, "freeze rank", 1, 5.0),
        plans={(rank, 1): changed(steps=1, late_step=1, late_s=6.0) for rank in range(3)},
    )
    assert end_of(simulate(plan)).code == 0


def test_a_pause_is_waited_out_for_ever_under_wait() -> None:
    """Every question is answered "keep waiting", nobody is ended, one epoch."""
    plan = schedule(Policy.WAIT, (0.9, "freeze rank", 1, 14.0), timeouts=WAITING)
    world = simulate(plan)
    assert end_of(world).code == 0
    assert world.truth.keep_waitings >= 10


# ---- (c) clean stop --------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [2, 15, 1, 3])
def test_a_stop_request_ends_everybody(number: int) -> None:
    """(c) Verdict, SIGTERM, and the exit code of the signal."""
    plan = schedule(Policy.RAISE, (1.5, "stop", number, 0.0), base=changed(steps=50))
    world = simulate(plan)
    assert end_of(world).code == 128 + number
    assert all(process.kind is VerdictKind.STOP for process in world.processes())


def test_a_stop_request_after_a_loss_is_not_the_cause() -> None:
    """The root cause outranks what a person did about it."""
    plan = schedule(
        Policy.RAISE,
        (3.0, "stop", 2, 0.0),
        plans={(2, 1): changed(steps=2, exit_status=-9)},
        base=changed(on_loss="run on", steps=50),
    )
    assert end_of(simulate(plan)).code == 137


def test_whoever_ignores_sigterm_is_killed_after_the_grace() -> None:
    """(c) KILL after grace, not before."""
    plan = schedule(
        Policy.RAISE,
        (1.5, "stop", 2, 0.0),
        plans={(1, 1): changed(steps=50, obeys_term=False)},
        base=changed(steps=50),
    )
    world = simulate(plan)
    process = world.hosts[1].processes[(1, 1)]
    assert process.status == -9
    assert process.died_at == pytest.approx(1.5 + TIMEOUTS.grace_s, abs=0.1)


def test_a_second_stop_request_does_not_wait_for_the_grace() -> None:
    """(c) Twice means at once."""
    plan = schedule(
        Policy.RAISE,
        (1.5, "stop twice", 2, 0.0),
        plans={(1, 1): changed(steps=50, obeys_term=False)},
        base=changed(steps=50),
    )
    world = simulate(plan)
    assert world.hosts[1].processes[(1, 1)].died_at == pytest.approx(1.9, abs=0.1)
    assert end_of(world).code == 130


def test_what_cannot_be_killed_is_reported_and_nothing_starts_again() -> None:
    """Exit 71, named, bounded; no restart beside it."""
    plans = {
        (1, 1): changed(is_unkillable=True, obeys_term=False, steps=50),
        (0, 1): changed(steps=2, exit_status=3),
    }
    world = simulate(schedule(Policy.RESTART, plans=plans, base=changed(steps=50)))
    assert end_of(world).code == 71
    assert "cannot be killed" in end_of(world).cause
    assert "exited with code 3" in end_of(world).cause
    assert world.truth.last_epoch == 1


# ---- (d) who decides when the supervisor is stopped or cut off -----------------------------------


def test_local_deaths_are_told_while_the_supervisor_sleeps() -> None:
    """(d) The agent tells the ranks of its host, and answers questions, by itself."""
    plan = schedule(
        Policy.RAISE,
        (1.0, "freeze supervisor", 0, 8.0),
        hosts=1,
        per_host=4,
        plans={(2, 1): changed(steps=4, exit_status=-9)},
    )
    world = simulate(plan)
    assert end_of(world).code == 137
    others = [process for process in world.processes() if process.rank != 2]
    assert all(process.died_at < 4.0 for process in others)


def test_a_cut_off_agent_ends_its_ranks_when_the_lease_lapses() -> None:
    """(d) Keep waiting until the lease lapses, then stop; nobody outlives it by more than the grace."""
    plan = schedule(
        Policy.RAISE, (2.0, "cut", 2, 60.0), base=changed(steps=200, compute_s=0.5), timeouts=TIMEOUTS
    )
    world = simulate(plan)
    process = world.hosts[2].processes[(2, 1)]
    assert process.died_at <= 2.0 + TIMEOUTS.lease_s + TIMEOUTS.grace_s + 0.5
    assert end_of(world).code in (68, 72)


@pytest.mark.parametrize("way", ["cut up", "cut down"])
def test_every_question_is_answered_whichever_way_is_broken(way: str) -> None:
    """(d) Found by seed 6391: the supervisor was heard, but did not hear."""
    plan = schedule(
        Policy.RAISE, (1.0, way, 0, 8.0), plans={(2, 1): changed(late_step=3, late_s=5.0)}, kind="benign"
    )
    assert end_of(simulate(plan)).code == 0


def test_a_killed_supervisor_leaves_nobody() -> None:
    """Local agents see the end of the pipe, the others' leases lapse."""
    plan = schedule(Policy.RAISE, (1.5, "kill supervisor", 0, 0.0), is_local=True, base=changed(steps=500))
    world = simulate(plan)
    assert world.hosts[0].processes[(0, 1)].died_at < 2.5


# ---- (e) restart -----------------------------------------------------------------------------------


def test_restart_begins_when_every_old_rank_is_gone() -> None:
    """(e) Also when one of them needs SIGKILL."""
    plans = {(1, 1): changed(obeys_term=False), (0, 1): changed(steps=2, exit_status=1)}
    world = simulate(schedule(Policy.RESTART, plans=plans))
    assert end_of(world).code == 0
    assert world.truth.last_epoch == 2


def test_restart_waits_for_the_lease_of_a_host_that_nobody_can_reach() -> None:
    """(e) The host is lost after the host timeout, but its ranks may live until its lease has lapsed."""
    plan = schedule(
        Policy.RESTART, (3.0, "cut all", 2, 4.9), plans={(0, 1): changed(late_step=3, late_s=2.5)}
    )
    world = simulate(plan)
    assert end_of(world).code == 0
    assert world.truth.last_epoch == 2
    begin = min(move.at for move in world.supervisor.machine.story if move.after.name == "PREPARING")
    assert begin >= 3.0 + TIMEOUTS.lease_s + TIMEOUTS.grace_s - 1.0


def test_the_restart_budget_is_spent_by_every_path() -> None:
    """A crash, then a start timeout, then an init failure: two restarts, then the end."""
    plans = {
        (0, 1): changed(steps=1, exit_status=3),
        (0, 2): changed(init_delay_s=30.0),
        (0, 3): changed(init_error="no device"),
    }
    world = simulate(schedule(Policy.RESTART, plans=plans))
    assert world.truth.last_epoch == 3
    assert end_of(world).code in (1, 69)
    assert "failed in init: no device" in end_of(world).cause
    assert "restarts (2) are used up" in end_of(world).cause


# ---- late is not lost ------------------------------------------------------------------------------


def test_a_late_rank_is_waited_for_and_its_twin_is_not() -> None:
    """Question and answer; nobody lost. The same rank, killed, is lost."""
    late = simulate(schedule(Policy.RAISE, plans={(1, 1): changed(late_step=3, late_s=5.0)}, kind="benign"))
    assert end_of(late).code == 0
    assert late.truth.keep_waitings >= 4
    killed = simulate(schedule(Policy.RAISE, plans={(1, 1): changed(steps=3, exit_status=-9)}))
    assert end_of(killed).code == 137


def test_a_rank_that_reports_is_never_stuck() -> None:
    """However slow."""
    plan = changed(late_step=3, late_s=4 * TIMEOUTS.straggler_timeout_s, late_reports=True)
    assert end_of(simulate(schedule(Policy.RAISE, plans={(1, 1): plan}, kind="benign"))).code == 0


def test_a_rank_that_stands_still_is_stuck() -> None:
    """Past the straggler timeout: named, fenced, exit 74."""
    world = simulate(schedule(Policy.STOP, plans={(1, 1): changed(hang_step=3)}))
    assert end_of(world).code == 74
    assert "rank 1 on h1: no movement for" in end_of(world).cause


# ---- two planes ------------------------------------------------------------------------------------


def test_a_control_network_that_is_away_ends_nothing() -> None:
    """A management switch reboots: suspect, not lost."""
    faults = [(1.0 + index / 10, "cut", index, 10.0) for index in range(3)]
    plan = schedule(Policy.STOP, *faults, base=changed(steps=20, compute_s=0.5), kind="benign")
    assert end_of(simulate(plan)).code == 0


def test_a_host_that_drops_off_both_networks_is_lost_in_time() -> None:
    """Within the host timeout, by the data plane's word: it was last seen inside what now pends."""
    plan = schedule(Policy.STOP, (3.0, "cut all", 2, 60.0), plans={(0, 1): changed(late_step=3, late_s=2.5)})
    world = simulate(plan)
    assert end_of(world).code == 68
    assert "host h2 lost: not heard for" in end_of(world).cause
    moment = next(at for at, text in world.supervisor.machine.happenings if "lost" in text)
    assert moment <= 3.0 + TIMEOUTS.host_timeout_s + 0.5


def test_a_rank_that_became_late_as_its_host_fell_silent_is_not_lost() -> None:
    """Seed 20231: inside a collective at the last heartbeat, computing and reporting ever after."""
    late = changed(late_step=3, late_s=9.0, late_reports=True)
    for moment in (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6):
        plan = schedule(Policy.STOP, (moment, "cut", 2, 6.0), plans={(2, 1): late}, kind="benign")
        assert end_of(simulate(plan)).code == 0


def test_an_agent_that_is_killed_takes_control_along() -> None:
    """A local agent: control lost, exit 72; a remote one: host lost, exit 68."""
    local = simulate(schedule(Policy.STOP, (1.5, "kill agent", 0, 0.0), is_local=True))
    assert end_of(local).code == 72
    remote = simulate(schedule(Policy.STOP, (1.5, "kill agent", 1, 0.0), is_local=True))
    assert end_of(remote).code == 68
