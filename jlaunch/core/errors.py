"""The launcher's exceptions.

::

    JlaunchError
    ├─ ConfigError      the user's fault: file, key or flag, what was found, what was expected; exit 2
    ├─ ProtocolError    a message that this version does not understand, or that is too large
    └─ InvalidTransition  our own bug; carries the story of the machine; never caught

What a training script sees (``PeerLost`` and friends) is in ``jlaunch.backend``: a lost peer is data
here, until it reaches a script.
"""

from __future__ import annotations


class JlaunchError(Exception):
    """Base of what the launcher raises."""


class ConfigError(JlaunchError):
    """Bad input, refused before anything was started. ``str()`` is the one line for stderr."""


class ProtocolError(JlaunchError):
    """A control-plane message that cannot be understood."""


class InvalidTransition(JlaunchError):
    """A machine was driven against its table: a bug of ours."""
