"""Any command is a program: a file, a module, a script of the shell; none of them knows jlaunch."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from tests.e2e.harness import PROGRAMS, Job, program

pytestmark = pytest.mark.e2e

RANKS = 3
SUM = {"size": RANKS, "total": [3.0, 3.0], "mean": [1.0, 1.0, 1.0]}


def check_sums(job: Job, argv: list[str]) -> None:
    """Every rank computed with all others."""
    assert job.end() == 0, job.describe()
    lines = job.said("sum")
    assert sorted(line["rank"] for line in lines) == list(range(RANKS)), job.describe()
    for line in lines:
        assert {key: line[key] for key in SUM} == SUM
        assert line["argv"] == argv
    job.assert_nothing_left()


def test_python_file() -> None:
    """``jlaunch -n 3 plain_mlx.py ARGS``."""
    with Job(*program("plain_mlx.py", "--size", "a b"), ranks=RANKS) as job:
        check_sums(job, ["--size", "a b"])


def test_python_module() -> None:
    """``jlaunch -n 3 -- python -m plain_mlx``; PYTHONPATH of the user is kept."""
    env = {"PYTHONPATH": os.pathsep.join([str(PROGRAMS), os.environ.get("PYTHONPATH", "")])}
    with Job(sys.executable, "-m", "plain_mlx", "x", ranks=RANKS, env=env) as job:
        check_sums(job, ["x"])


def test_shell_script(tmp_path: Path) -> None:
    """``jlaunch -n 3 -- ./job.sh``: the rank is a grandchild behind a shell."""
    script = tmp_path / "job.sh"
    words = shlex.join([sys.executable, str(PROGRAMS / "plain_mlx.py"), "from-shell"])
    script.write_text(f"#!/bin/sh\n{words}\nexit $?\n")
    script.chmod(0o755)
    with Job(str(script), ranks=RANKS) as job:
        check_sums(job, ["from-shell"])


def test_chains_to_the_users_sitecustomize(tmp_path: Path) -> None:
    """A ``sitecustomize`` that was there before runs as it did."""
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ['SITE_MARK'] = 'seen'\n")
    reader = tmp_path / "reader.py"
    reader.write_text(
        "import json, os\nprint(json.dumps({'kind': 'mark', 'mark': os.environ['SITE_MARK']}))\n"
    )
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    with Job(str(reader), ranks=2, env=env) as job:
        assert job.end() == 0, job.describe()
        assert [line["mark"] for line in job.said("mark")] == ["seen", "seen"]


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_without_the_bootstrap_mlx_raises(flag: str) -> None:
    """Where Python is told to ignore us, MLX must fail: never a silent group of one."""
    if flag == "-S":
        site = next(path for path in sys.path if path.endswith("site-packages"))
        code = f"import sys; sys.path.append({site!r}); import mlx.core as mx; print(mx.distributed.init().size())"
    else:
        code = "import mlx.core as mx; print(mx.distributed.init().size())"
    with Job(sys.executable, flag, "-c", code, ranks=2) as job:
        assert job.end() not in (0, 2), job.describe()
        assert b"1" not in [line.split(b"] ")[-1] for line in job.stdout.all], job.describe()
