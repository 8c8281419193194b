"""Writes output in every way that is hard to show whole. argv: WAY COUNT.

`cut`: lines with characters of one to four bytes, a few bytes a write, in turn to stdout and stderr, the last line
without its end. `bar`: a progress bar, as tqdm draws it. `flood`: COUNT lines of 1 KiB as fast as it goes, then one on
stderr, and then it waits for the end of its input.
"""

from __future__ import annotations

import os
import sys
import time

WAY, COUNT = sys.argv[1], int(sys.argv[2])
RANK = os.environ["JLAUNCH_RANK"]
WAITING_S = 0.002
LONG_S = 0.2
"""Longer than the beginning of a line is held."""


def line(number: int) -> str:
    """One line of `cut`."""
    return f"{number} of rank {RANK}: aé€😀{'ü' * (number % 7)}\n"


def cut() -> None:
    """Both streams, no write with a whole line, many with half a character."""
    text = "".join(line(number) for number in range(COUNT)).encode()[:-1]
    for start in range(0, len(text), 5):
        for fd in (1, 2):
            os.write(fd, text[start : start + 5])
        in_character = text[start + 5 : start + 6] > b"\x7f"
        # What is written is read in pieces only if there is time between them, and shown so only after more of it.
        time.sleep(LONG_S if in_character and start % 100 == 0 else WAITING_S)


def bar() -> None:
    """Each state over the one before, and a newline after the last."""
    for number in range(COUNT + 1):
        os.write(2, f"\r{number * 100 // COUNT:3d}%|{'█' * (number % 10):10s}| {number}/{COUNT}".encode())
        time.sleep(WAITING_S)
    os.write(2, b"\n")


def flood() -> None:
    """Numbered lines."""
    for number in range(COUNT):
        sys.stdout.write(f"{number:08d}".ljust(1023, "x") + "\n")
    sys.stdout.flush()
    sys.stderr.write("all written\n")
    sys.stderr.flush()
    sys.stdin.read()


if __name__ == "__main__":
    {"cut": cut, "bar": bar, "flood": flood}[WAY]()
