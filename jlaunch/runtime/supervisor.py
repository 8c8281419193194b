"""The head process: starts the agents, drives the job machine, shows the output, ends with its code.

The public face of this module, used by the command line, is ``run``.
"""

from __future__ import annotations

from jlaunch.core.spec import JobSpec


def run(spec: JobSpec, *, python: str | None = None, events: str | None = None) -> int:
    """Run the job to its end and return the exit code (DESIGN 3.1).

    ``spec.program`` is what the user typed; ``python`` is ``--python``: it runs a ``.py`` program,
    or any program when given. ``events`` is the path of ``--events``.

    Raises ConfigError for what is the user's fault and was seen before anything was started.
    """
    raise NotImplementedError((spec, python, events))
