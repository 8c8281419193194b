"""The last words of a job: one line that says why it ended, and what the rank to blame said last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jlaunch.view.lines import prefix_of

TAIL_LINES = 20
"""As many lines of a rank's stderr as show a Python traceback of usual depth."""


def render_ending(cause: str, tails: Mapping[int, Sequence[str]], *, colour: bool = False) -> str:
    """What jlaunch prints last, newline included; ``""`` when all went well and nothing is to be said.

    ``tails``: for each rank to blame, the last lines of its stderr. They are shown again, together and
    below the cause, because in the stream they stand among the consequences that the others printed.
    """
    if not cause:
        return ""
    text = [f"jlaunch: {cause}"]
    for rank, lines in sorted(tails.items()):
        if lines:
            prefix = prefix_of(rank, colour=colour).decode()
            text.append(f"jlaunch: the last lines that rank {rank} wrote to stderr:")
            text += [f"{prefix}{line}" for line in lines[-TAIL_LINES:]]
    return "\n".join(text) + "\n"
