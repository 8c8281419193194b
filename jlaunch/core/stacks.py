"""Where a rank is, in a few words, from the stacks that faulthandler wrote. Pure text."""

from __future__ import annotations

import re
from collections.abc import Sequence

_FRAME = re.compile(r'^\s*File "(?P<path>.*)", line (?P<line>\d+|\?\?\?) in (?P<name>.*)$')
_NOT_THE_PROGRAMS = re.compile(
    r"/site-packages/|/dist-packages/|/lib/python3[^/]*/|/jlaunch/(?:runtime|backend)/|^<"
)


def place_of(lines: Sequence[str]) -> str:
    """The innermost frame of the program's own code in its main thread: ``train.py:41 in evaluate``.

    The main thread is the one that ends in ``<module>``, else the last one. '' if there is no frame.
    """
    threads: list[list[re.Match[str]]] = []
    for line in lines:
        frame = _FRAME.match(line)
        if frame is not None and threads:
            threads[-1].append(frame)
        elif frame is None:
            threads.append([])
    stacks = [thread for thread in threads if thread]
    if not stacks:
        return ""
    main = next((stack for stack in stacks if stack[-1]["name"] == "<module>"), stacks[-1])
    own = next((frame for frame in main if not _NOT_THE_PROGRAMS.search(frame["path"])), main[0])
    return f"{own['path'].rpartition('/')[2]}:{own['line']} in {own['name']}"
