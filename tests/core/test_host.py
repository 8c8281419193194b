"""A host, as the supervisor sees it."""

from __future__ import annotations

import math

import msgspec
import pytest

from jlaunch.core.errors import InvalidTransition
from jlaunch.core.events import AgentReady
from jlaunch.core.host import CLOCK_MARGIN, HostMachine, HostState, beat_interval_s, suspect_after_s
from jlaunch.core.spec import HostSpec, Timeouts
from tests.core.driving import TIMEOUTS

READY = AgentReady(host=0, incarnation="0.1", pid=9)


def host() -> HostMachine:
    return HostMachine(0, HostSpec(name="h0"), 1.0)


def ready_host() -> HostMachine:
    machine = host()
    machine.ready(READY, "0.1", 2.0)
    return machine


def test_from_connecting_to_lost() -> None:
    machine = host()
    assert (machine.state, machine.is_connected, machine.silence_s(4.0)) == (HostState.CONNECTING, False, 3.0)
    machine.ready(READY, "0.1", 2.0)
    assert (machine.is_ready, machine.is_connected, machine.agent_pid) == (True, True, 9)
    assert machine.silence_s(4.0) == 2.0
    assert not machine.hear(5.0)
    machine.suspect(9.0)
    assert (machine.is_ready, machine.is_connected) == (False, True)
    assert machine.hear(10.0)
    assert machine.is_ready
    machine.lose("because", 11.0)
    assert (machine.state, machine.is_connected) == (HostState.LOST, False)


def test_lost_is_final() -> None:
    machine = ready_host()
    machine.lose("because", 3.0)
    with pytest.raises(InvalidTransition):
        machine.ready(READY, "0.2", 4.0)


def test_spans() -> None:
    assert beat_interval_s(TIMEOUTS) == 1.0
    assert beat_interval_s(Timeouts(host_timeout_s=1.0)) == pytest.approx(0.2)
    assert beat_interval_s(Timeouts(lease_s=3.0)) == pytest.approx(0.5)
    assert suspect_after_s(TIMEOUTS) == 2.5


def test_when_its_ranks_have_ended_without_a_word() -> None:
    """Lease, grace and the kill, from the last sign of life, with a margin for another clock."""
    expected = 2.0 + (60.0 + 10.0 + 5.0) * (1 + CLOCK_MARGIN)
    assert ready_host().ended_at(TIMEOUTS, 5.0) == pytest.approx(expected)
    assert host().ended_at(TIMEOUTS, 5.0) == pytest.approx(expected - 1.0)
    forever = msgspec.structs.replace(TIMEOUTS, lease_s=math.inf)
    assert ready_host().ended_at(forever, 5.0) == math.inf


def test_our_own_sleep_is_not_its_silence() -> None:
    machine = ready_host()
    machine.forgive(3.0, 10.0)
    assert machine.silence_s(10.0) == 5.0
    machine.forgive(30.0, 10.0)
    assert machine.silence_s(10.0) == 0.0
    stranger = host()
    stranger.forgive(3.0, 10.0)
    assert stranger.heard_at is None
