"""Install jlaunch as a user would, from a clean copy of what git has, and run it.

    python .ci/try_package.py

Builds a wheel in isolation, looks at what is in it, installs it into a scratch environment and runs a
small job there, away from the checkout.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD_LIMIT_S = 180
"""For a build on two cores; half of its processor time is compared, whoever else is busy."""

WANTED = [
    "jlaunch/py.typed",
    "jlaunch/backend/libjlaunch_soft.so",
    "jlaunch/backend/bin/jlaunch-shim",
    "jlaunch/runtime/startup/sitecustomize.py",
    "jlaunch/runtime/guardian.py",
    "jlaunch/cli/demo/loop.py",
]
WANTED_EXTENSIONS = ["jlaunch/backend/_control.", "jlaunch/backend/_ext."]
UNWANTED = (".cpp", ".h", ".cmake", "CMakeLists.txt")

PROGRAM = """
import mlx.core as mx
group = mx.distributed.init(strict=True)
print("sum", mx.distributed.all_sum(mx.array(group.rank() + 1.0)).item(), flush=True)
"""


def run(*command: str | Path, cwd: Path, **more: str) -> str:
    """Run a command with a bound; its output if it succeeds, else the end of this script."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | more
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=environ, text=True, timeout=900, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


def check_wheel(wheel: Path) -> None:
    """What must be in the wheel is, and what must not be is not."""
    with zipfile.ZipFile(wheel) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
    missing = [name for name in WANTED if name not in entries]
    missing += [name for name in WANTED_EXTENSIONS if not any(entry.startswith(name) for entry in entries)]
    unwanted = [name for name in entries if name.endswith(UNWANTED)]
    if missing or unwanted:
        sys.exit(f"{wheel.name}: missing {missing}, unwanted {unwanted}, has {sorted(entries)}")
    if not (entries["jlaunch/backend/bin/jlaunch-shim"].external_attr >> 16) & 0o111:
        sys.exit(f"{wheel.name}: jlaunch-shim is not executable")


def main() -> None:
    """Build, look, install, run."""
    with tempfile.TemporaryDirectory(prefix="jlaunch-package-") as directory:
        scratch = Path(directory)
        source = scratch / "source"
        run("git", "clone", "--quiet", "--no-hardlinks", ROOT, source, cwd=scratch)
        run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", scratch, source, cwd=scratch)
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        built_s = (spent.ru_utime + spent.ru_stime) / 2
        (wheel,) = scratch.glob("jlaunch-*.whl")
        check_wheel(wheel)
        run(sys.executable, "-m", "venv", scratch / "venv", cwd=scratch)
        bin_dir = scratch / "venv" / "bin"
        run(bin_dir / "python", "-m", "pip", "install", "--quiet", f"{wheel}[cpu]", cwd=scratch)
        (scratch / "program.py").write_text(PROGRAM)
        shown = run(bin_dir / "jlaunch", "-n", "2", "program.py", cwd=scratch)
        if sorted(shown.splitlines()) != ["[0] sum 3.0", "[1] sum 3.0"]:
            sys.exit(f"jlaunch from the wheel printed {shown!r}")
        print(f"{wheel.name}: built in {built_s:.0f} s of two cores, installed, runs")
        if built_s > BUILD_LIMIT_S:
            sys.exit(f"building took {built_s:.0f} s, expected at most {BUILD_LIMIT_S}")


if __name__ == "__main__":
    main()
