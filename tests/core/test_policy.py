"""The user's rule."""

from __future__ import annotations

import random

import pytest

from jlaunch.core.cause import Cause, CauseKind, Inquest
from jlaunch.core.contract import VerdictKind
from jlaunch.core.errors import ConfigError
from jlaunch.core.job import JobMachine
from jlaunch.core.policy import Reaction, fast_verdict, may_restart, reaction, refuse_unsupported
from jlaunch.core.spec import Policy
from tests.core.driving import job_spec

STARTS = (CauseKind.SPAWN_FAILED, CauseKind.START_TIMEOUT, CauseKind.INTERNAL, CauseKind.STOPPED)


@pytest.mark.parametrize("policy", [Policy.REPLACE, Policy.SHRINK])
def test_what_is_not_there_is_refused(policy: Policy) -> None:
    with pytest.raises(ConfigError, match=f"--on-peer-loss: '{policy.value}'.*expected one of raise, wait"):
        refuse_unsupported(policy)
    with pytest.raises(ConfigError):
        JobMachine(job_spec(policy), rng=random.Random(1))


@pytest.mark.parametrize("policy", [Policy.RAISE, Policy.WAIT])
@pytest.mark.parametrize("kind", CauseKind)
def test_raise_and_wait_tell(policy: Policy, kind: CauseKind) -> None:
    refuse_unsupported(policy)
    assert reaction(policy, kind) is (Reaction.END if kind in STARTS else Reaction.TELL)
    assert fast_verdict(policy) is VerdictKind.RAISE


@pytest.mark.parametrize("policy", [Policy.STOP, Policy.RESTART])
@pytest.mark.parametrize("kind", CauseKind)
def test_stop_and_restart_end(policy: Policy, kind: CauseKind) -> None:
    assert reaction(policy, kind) is Reaction.END
    assert fast_verdict(policy) is VerdictKind.STOP


def test_only_restart_restarts_and_not_beside_what_cannot_be_killed() -> None:
    inquest = Inquest()
    assert may_restart(Policy.RESTART, inquest, has_unkillable=False)
    assert not may_restart(Policy.RESTART, inquest, has_unkillable=True)
    assert not may_restart(Policy.STOP, inquest, has_unkillable=False)
    inquest.record(Cause(kind=CauseKind.INTERNAL, at=0.0, text="ours"))
    assert not may_restart(Policy.RESTART, inquest, has_unkillable=False)
