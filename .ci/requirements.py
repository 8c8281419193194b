"""Print what must be installed to work in a checkout, a requirement a line, straight from pyproject.toml.

    python .ci/requirements.py [EXTRA ...]

The project itself is not installed: it is run where it lies, its native parts built beside it.
"""

from __future__ import annotations

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    # Every pip of these Pythons carries it; nothing else can be relied on before anything is installed.
    from pip._vendor import tomli as tomllib


def main(extras: list[str]) -> None:
    """Print the project's dependencies and those of ``extras``."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"]]
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    print("\n".join(wanted))


if __name__ == "__main__":
    main(sys.argv[1:])
