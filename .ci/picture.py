"""Draw what a command prints on a terminal, from a real run: python .ci/picture.py OUT.svg TITLE COMMAND...

The picture is the command's own output, nothing added but the prompt. Exit code: the command's.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.sax.saxutils import escape

CHAR_W, LINE_H, MARGIN, BAR_H = 7.83, 18, 16, 30
STYLE = "font-family:ui-monospace,'SF Mono','DejaVu Sans Mono',Menlo,monospace;font-size:13px;white-space:pre"


def draw(title: str, lines: list[str]) -> str:
    """The terminal window as SVG."""
    width = round(max(len(line) for line in lines) * CHAR_W + 2 * MARGIN)
    height = BAR_H + len(lines) * LINE_H + 2 * MARGIN
    text = "\n".join(
        f'<text x="{MARGIN}" y="{BAR_H + MARGIN + LINE_H * (n + 0.7):.0f}" fill="{_ink(line)}" '
        f'xml:space="preserve">{escape(line)}</text>'
        for n, line in enumerate(lines)
        if line
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" style="{STYLE}">\n'
        f'<rect width="100%" height="100%" rx="8" fill="#1b1d22"/>\n'
        f'<text x="50%" y="20" text-anchor="middle" fill="#8a8f98">{escape(title)}</text>\n{text}\n</svg>\n'
    )


def _ink(line: str) -> str:
    if line.startswith(("$", "  $")):
        return "#7ee787"
    return "#d7dae0" if line.startswith(" ") else "#ffffff"


def main(out: str, title: str, *command: str) -> int:
    """Run the command, draw what it printed."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    lines = [f"$ {title}", *(done.stdout + done.stderr).rstrip().splitlines()]
    Path(out).write_text(draw(title, lines))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
