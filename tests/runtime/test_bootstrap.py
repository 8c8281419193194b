"""The bootstrap in a rank's interpreter: what it costs, what it changes, what it leaves alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from jlaunch.core import contract
from tests.backend.harness import PACKAGE_ROOT, STARTUP_DIR, StandIn

JOB = {
    contract.ENV_JOB: "test",
    contract.ENV_RANK: "0",
    contract.ENV_LOCAL_RANK: "0",
    contract.ENV_WORLD_SIZE: "2",
    contract.ENV_EPOCH: "1",
    contract.ENV_RESTART_COUNT: "0",
    contract.ENV_DIR: "/nonexistent",
    contract.ENV_BACKEND: "jaccl",
    contract.ENV_DEADLINE_S: "10.0",
    contract.ENV_VERBS: "soft",
    contract.ENV_SOFT_DIR: "/nonexistent",
}


def python(
    *arguments: str, path: tuple[Path, ...] = (STARTUP_DIR, PACKAGE_ROOT), env: Mapping[str, str] = JOB
) -> subprocess.CompletedProcess[str]:
    """Run this Python with these directories on PYTHONPATH; by default as an agent would."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("MLX_", "JLAUNCH_"))
    }
    inherited["PYTHONPATH"] = os.pathsep.join(map(str, path))
    return subprocess.run(
        [sys.executable, *arguments],
        env={**inherited, **env},
        cwd="/",  # with -c the working directory is searched as well
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


HEAVY = {"zmq", "msgspec", "paramiko", "click", "psutil", "numpy", "asyncio", "jlaunch.backend._ext"}


def modules_after(statement: str, env: Mapping[str, str] = JOB) -> set[str]:
    done = python("-c", f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))", env=env)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_costs_nothing_before_mlx_is_imported() -> None:
    added = modules_after("pass") - modules_after("pass", env={})
    assert added <= {"apport_python_hook"}


def test_imports_nothing_heavy_before_init() -> None:
    modules = modules_after("import mlx.core as mx; mx.distributed.is_available()")
    assert "jlaunch.runtime.rank_patch" in modules
    assert not modules & HEAVY
    assert not {name for name in modules if name.startswith("jlaunch.")} - {
        "jlaunch.runtime",
        "jlaunch.runtime.rank_patch",
    }


def test_importing_jlaunch_is_light() -> None:
    modules = modules_after("import jlaunch; jlaunch.epoch(); jlaunch.PeerLost; jlaunch.failure()", env={})
    assert not modules & (HEAVY | {"mlx", "mlx.core"})


def test_names_of_the_package() -> None:
    code = (
        "import jlaunch\n"
        "for name in jlaunch.__all__: assert name in dir(jlaunch) and getattr(jlaunch, name).__doc__, name\n"
        "assert not hasattr(jlaunch, 'rejoin')"
    )
    assert python("-c", code, env={}).returncode == 0


WHO = "import mlx.core as mx; print(type(mx.distributed.init).__name__)"


def test_patches_in_a_job_only() -> None:
    assert python("-c", WHO).stdout == "function\n"
    assert python("-c", WHO, env={}).stdout == "nb_func\n"
    assert python("-c", WHO, env={**JOB, contract.ENV_BACKEND: "ring"}).stdout == "nb_func\n"


def test_works_for_modules_scripts_and_children(tmp_path: Path) -> None:
    (tmp_path / "mod.py").write_text(WHO)
    assert python("-m", "mod", path=(STARTUP_DIR, PACKAGE_ROOT, tmp_path)).stdout == "function\n"
    assert python(str(tmp_path / "mod.py")).stdout == "function\n"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WHO!r}], check=True)"
    assert python("-c", child).stdout == "function\n"
    spawned = (
        "import multiprocessing, mod_for_child\n"
        "if __name__ == '__main__':\n"
        "    p = multiprocessing.get_context('spawn').Process(target=mod_for_child.who); p.start(); p.join()\n"
    )
    (tmp_path / "mod_for_child.py").write_text("def who():\n    exec(" + repr(WHO) + ")\n")
    (tmp_path / "spawns.py").write_text(spawned)
    assert python(str(tmp_path / "spawns.py")).stdout == "function\n"


def test_leaves_mlx_core_as_imported() -> None:
    code = (
        "import mlx.core as mx, importlib.machinery as m\n"
        "assert isinstance(mx.__spec__.loader, m.ExtensionFileLoader), mx.__spec__.loader\n"
        "assert mx.__loader__ is mx.__spec__.loader"
    )
    assert python("-c", code).returncode == 0


DOCUMENTATION = """
import json, mlx.core as mx
functions = {n: getattr(mx.distributed, n) for n in dir(mx.distributed) if n[0] != "_" and n != "Group"}
print(json.dumps({n: [f.__name__, f.__doc__] for n, f in functions.items()}))
"""

PARAMETERS = """
import inspect, json, mlx.core as mx
functions = {n: getattr(mx.distributed, n) for n in dir(mx.distributed) if n[0] != "_" and n != "Group"}
of = {n: inspect.signature(f).parameters.values() for n, f in functions.items()}
print(json.dumps({n: [[p.name, p.kind.name, repr(p.default)] for p in ps] for n, ps in of.items()}))
"""

POSITIONAL, KEYWORD, REQUIRED = "POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY", "<class 'inspect._empty'>"


def test_documentation_is_kept() -> None:
    mlx, ours = (json.loads(python("-c", DOCUMENTATION, env=env).stdout) for env in ({}, JOB))
    assert ours == mlx


def test_parameters_are_kept() -> None:
    parameters = json.loads(python("-c", PARAMETERS).stdout)
    options = [["group", KEYWORD, "None"], ["stream", KEYWORD, "None"]]
    x, src = ["x", POSITIONAL, REQUIRED], ["src", POSITIONAL, REQUIRED]
    assert parameters == {
        **{name: [x, *options] for name in ("all_sum", "all_gather", "all_max", "all_min", "sum_scatter")},
        "send": [x, ["dst", POSITIONAL, REQUIRED], *options],
        "recv": [["shape", POSITIONAL, REQUIRED], ["dtype", POSITIONAL, REQUIRED], src, *options],
        "recv_like": [x, src, *options],
        "init": [
            ["strict", POSITIONAL, "False"],
            ["backend", POSITIONAL, "'any'"],
            ["all_gather_factory", KEYWORD, "None"],
        ],
        "is_available": [["backend", POSITIONAL, "'any'"]],
    }


@pytest.mark.parametrize(
    "content",
    [
        "print('mine'); import sys; sys.from_mine = 1",
        "raise ValueError('broken')",
        "import no_such_module",
        "raise ImportError('odd', name='sitecustomize')",
        "def broken(:",
        None,
    ],
)
def test_sitecustomize_of_the_user_behaves_as_without_us(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "sitecustomize.py").write_text(content)
    look = (
        "import sys; print(getattr(sys, 'from_mine', None))\n"
        "print(getattr(sys.modules.get('sitecustomize'), '__file__', None))"
    )
    alone = python("-c", look, path=(tmp_path,))
    chained = python("-c", look + f"\n{WHO}", path=(STARTUP_DIR, tmp_path, PACKAGE_ROOT))
    assert chained.stderr == alone.stderr
    assert chained.returncode == alone.returncode
    if alone.returncode == 0:
        ours = str(STARTUP_DIR / "sitecustomize.py")
        assert chained.stdout.replace(ours, "None") == alone.stdout + "function\n"


def test_startup_directory_is_not_left_on_the_path() -> None:
    assert str(STARTUP_DIR) not in python("-c", "import sys; print(sys.path)").stdout


def test_says_when_jlaunch_is_missing_and_only_with_mlx(tmp_path: Path) -> None:
    (tmp_path / "jlaunch").mkdir()
    (tmp_path / "jlaunch" / "__init__.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'jlaunch'\")"
    )
    quiet = python("-c", "print('ran')", path=(STARTUP_DIR, tmp_path))
    assert (quiet.stdout, quiet.stderr) == ("ran\n", "")
    # Also a program that goes on without MLX, and one that tries again, are told.
    code = "for _ in range(2):\n  try:\n    import mlx.core\n  except ImportError: print('caught')"
    missing = python("-c", code, path=(STARTUP_DIR, tmp_path))
    assert missing.stdout == "caught\ncaught\n"
    first = missing.stderr.splitlines()[0]
    assert first.startswith("jlaunch: rank 0 ")
    assert f"{sys.executable} -m pip install jlaunch" in first


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_where_it_cannot_run_mlx_raises(tmp_path: Path, flag: str) -> None:
    hostfile = tmp_path / "no-bootstrap.hostfile"
    hostfile.write_text("not for MLX's ring\n")
    purelib = next(
        path
        for path in sys.path
        if (Path(path) / "mlx" / "__init__.py").exists() or (Path(path) / "mlx").is_dir()
    )
    env = {**JOB, "MLX_HOSTFILE": str(hostfile), "MLX_RANK": "0"}
    for call in ("mx.distributed.init()", "mx.eval(mx.distributed.all_sum(mx.array(1)))"):
        code = f"import sys; sys.path.append({purelib!r}); import mlx.core as mx; {call}; print('a group of one')"
        done = python(flag, "-c", code, env=env)
        assert done.returncode != 0
        assert "a group of one" not in done.stdout


def test_damaged_environment_is_refused() -> None:
    for name, value in ((contract.ENV_RANK, "two"), (contract.ENV_DIR, None)):
        env = {**JOB, name: value or ""}
        if value is None:
            del env[name]
        done = python("-c", "import mlx.core as mx; mx.distributed.init()", env=env)
        assert "RuntimeError: JLAUNCH_JOB is set" in done.stderr


def test_init_in_a_child_names_the_holder() -> None:
    program = """
import json, os, subprocess, sys
import mlx.core as mx
code = "import mlx.core as mx; mx.distributed.all_sum(mx.array(1))"
mx.distributed.init()
child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
pid = os.fork()
if pid == 0:
    try:
        mx.distributed.init()
    except RuntimeError as error:
        print(json.dumps({"forked": str(error)}), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
mx.eval(mx.distributed.all_sum(mx.array(1)))
print(json.dumps({"pid": os.getpid(), "child": child.stderr}), flush=True)
"""
    with StandIn(program, size=1) as ranks:
        pid = ranks.said(0, "pid")
        assert "RuntimeError" in ranks.said(0, "child")
        assert str(pid) in ranks.said(0, "child")
        assert str(pid) in ranks.said(0, "forked")
        assert ranks.wait(0) == 0


def test_fork_after_init_does_not_disturb_the_rank() -> None:
    # A child that ends as Python ends (handlers, destructors) and one that is terminated.
    program = """
import json, os, signal, sys
import mlx.core as mx
group = mx.distributed.init()
x = mx.ones((10,))
mx.eval(mx.distributed.all_sum(x))
if group.rank() == 0:
    pid = os.fork()
    if pid == 0:
        sys.exit(7)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, b"x")
        signal.pause()
    os.read(read, 1)
    os.kill(pid, signal.SIGTERM)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    print(json.dumps({"codes": codes}), flush=True)
for _ in range(3):
    mx.eval(mx.distributed.all_sum(x))
print(json.dumps({"sum": mx.distributed.all_sum(x)[0].item()}), flush=True)
"""
    with StandIn(program, raises_on_death=True) as ranks:
        assert ranks.said(0, "codes") == [7, -15]
        assert [ranks.said(rank, "sum") for rank in (0, 1)] == [2, 2]
        assert [ranks.wait(rank) for rank in (0, 1)] == [0, 0]
