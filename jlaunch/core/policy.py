"""The user's rule: what a cause leads to, and whether an epoch may follow. Pure functions."""

from __future__ import annotations

import enum

from jlaunch.core.cause import CauseKind, Inquest
from jlaunch.core.contract import VerdictKind
from jlaunch.core.errors import ConfigError
from jlaunch.core.spec import Policy


class Reaction(enum.Enum):
    """What a cause leads to, at once."""

    TELL = enum.auto()
    """The survivors are told and run on."""
    END = enum.auto()
    """Every rank is stopped."""


_SUPPORTED = (Policy.RAISE, Policy.WAIT, Policy.STOP, Policy.RESTART)
_TELLING = (Policy.RAISE, Policy.WAIT)
_ENDING = (
    # These leave nobody who could sensibly run on: the job never began, or we ourselves failed.
    CauseKind.SPAWN_FAILED,
    CauseKind.START_TIMEOUT,
    CauseKind.INTERNAL,
    CauseKind.STOPPED,
)


def refuse_unsupported(policy: Policy) -> None:
    """Raise ConfigError for a policy that this version does not carry out."""
    if policy not in _SUPPORTED:
        words = ", ".join(each.value for each in _SUPPORTED)
        raise ConfigError(
            f"--on-peer-loss: {policy.value!r} is not available in this version, expected one of {words}"
        )


def reaction(policy: Policy, kind: CauseKind) -> Reaction:
    """What ``kind`` leads to under ``policy``."""
    if policy in _TELLING and kind not in _ENDING:
        return Reaction.TELL
    return Reaction.END


def fast_verdict(policy: Policy) -> VerdictKind:
    """What an agent writes at once into the blocks of its host when it saw a death on it."""
    return VerdictKind.RAISE if policy in _TELLING else VerdictKind.STOP


def may_restart(policy: Policy, inquest: Inquest, *, has_unkillable: bool) -> bool:
    """Whether an epoch with these causes may be followed by another, the budget apart.

    Not beside a process that cannot be killed (two processes would hold one rank), and not after a
    failure of our own, which the next epoch would meet again.
    """
    if policy is not Policy.RESTART or has_unkillable:
        return False
    return all(cause.kind is not CauseKind.INTERNAL for cause in inquest.causes)
