"""The last words of a job: what the ranks to blame said last, and the one line that says why it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

TAIL_LINES = 20
"""As many lines of a rank's stderr as show a Python traceback of usual depth."""


def ending_lines(code: int, cause: str, tails: Mapping[int, Sequence[str]]) -> list[str]:
    """What jlaunch prints last, a line each; nothing when all went well.

    ``tails``: for each rank to blame, the last lines of its stderr. They are shown again, together,
    because in the stream they stand among the consequences that the others printed. The exit code and its
    cause come last, where a person looks first; as a note, the cause may have been said when it was seen.
    """
    lines = []
    for rank, tail in sorted(tails.items()):
        if tail:
            lines.append(f"jlaunch: the last lines of rank {rank} on stderr:")
            lines += [f"  [{rank}] {line}" for line in tail[-TAIL_LINES:]]
    if cause:
        lines.append(f"jlaunch: ended with code {code}: {cause}")
    return lines
