"""The rules of the code hold, and each of them is seen to fail when something is planted against it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import architecture

ROOT = Path(__file__).parents[1]

RULES = [
    architecture.imports,
    architecture.strangers,
    architecture.purity,
    architecture.sizes,
    architecture.habits,
    architecture.words,
    architecture.contract,
    architecture.promises,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_rule_holds(rule: Callable[[Path], list[str]]) -> None:
    assert rule(ROOT) == []


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, to plant things in."""
    root = tmp_path_factory.mktemp("copy")
    ignore = shutil.ignore_patterns("__pycache__", "*.so", "bin")
    for folder in ("jlaunch", "docs", "configs", "tests"):
        shutil.copytree(ROOT / folder, root / folder, ignore=ignore)
    for file in ROOT.glob("*.md"):
        shutil.copy(file, root)
    return root


LONG_FUNCTION = "def long() -> None:\n" + "    x = 1\n" * 70
LONG_CPP = "void f() {\n" + "  g();\n" * 70 + "}\n"

PLANTED = [
    (architecture.imports, "jlaunch/core/planted.py", "import jlaunch.io.clock\n", "core must not import jlaunch.io.clock"),
    (architecture.imports, "jlaunch/core/planted.py", "from jlaunch import view\n", "core must not import jlaunch.view"),
    (architecture.imports, "jlaunch/core/planted.py", "from ..io import clock\n", "core must not import jlaunch.io"),
    (architecture.imports, "jlaunch/view/planted.py", "from jlaunch.io.jobs import live_jobs\n", "view must not import jlaunch.io.jobs"),
    (architecture.imports, "jlaunch/io/planted.py", "import jlaunch.view.lines\n", "io must not import jlaunch.view.lines"),
    (architecture.imports, "jlaunch/runtime/planted.py", "def f():\n    from jlaunch.cli import main\n", "runtime must not import jlaunch.cli"),
    (architecture.imports, "jlaunch/runtime/planted.py", "import jlaunch.backend\n", "runtime must not import jlaunch.backend"),
    (architecture.imports, "jlaunch/backend/planted.py", "from jlaunch.core import contract\n", "backend must not import jlaunch.core"),
    (architecture.strangers, "jlaunch/runtime/agent_planted.py", "from jlaunch.runtime.supervisor import run\n", "agent must not import"),
    (architecture.strangers, "jlaunch/runtime/supervisor_planted.py", "import jlaunch.runtime.agent\n", "supervisor must not import"),
    (architecture.purity, "jlaunch/core/planted.py", "import time\n", "core is pure and must not import time"),
    (architecture.purity, "jlaunch/core/planted.py", "def f():\n    from os import getpid\n", "core is pure and must not import os"),
    (architecture.purity, "jlaunch/core/planted.py", "open('x')\n", "core is pure and must not open"),
    (architecture.purity, "jlaunch/view/planted.py", "import sys\n", "view is pure and must not import sys"),
    (architecture.sizes, "jlaunch/io/planted.py", LONG_FUNCTION, "long has 71 lines, at most 70"),
    (architecture.sizes, "jlaunch/io/planted.py", "x = 1\n" * 401, "401 lines, at most 400"),
    (architecture.sizes, "jlaunch/backend/src/planted.cpp", LONG_CPP, "a function of 72 lines"),
    (architecture.sizes, "jlaunch/backend/src/planted.h", "int x;\n" * 501, "501 lines, at most 500"),
    (architecture.habits, "jlaunch/io/planted.py", "import time\ntime.sleep(1)\n", "sleeps"),
    (architecture.habits, "tests/cli/planted.py", "import time\ntime.sleep(1)\n", "sleeps"),
    (architecture.habits, "jlaunch/io/planted.py", "import subprocess\nsubprocess.run('x', shell=True)\n", "starts a shell"),
    (architecture.habits, "jlaunch/io/planted.py", "import subprocess\nsubprocess.run('x', preexec_fn=f)\n", "uses preexec_fn"),
    (architecture.habits, "jlaunch/io/planted.py", "import pickle\n", "uses pickle"),
    (architecture.habits, "jlaunch/io/planted.py", "import os\nos.system('x')\n", "calls os.system"),
    (architecture.habits, "jlaunch/io/planted.py", "try:\n    f()\nexcept Exception:\n    pass\n", "catches everything"),
    (architecture.habits, "jlaunch/io/planted.py", "try:\n    f()\nexcept:\n    pass\n", "catches everything"),
    (architecture.words, "jlaunch/io/planted.py", "# the master node\n", "'master' is not a word of ours"),
    (architecture.words, "jlaunch/backend/src/planted.h", "// all workers\n", "'workers' is not a word of ours"),
    (architecture.words, "jlaunch/io/planted.py", "# as in DESIGN 3.1\n", "cites a page"),
    (architecture.words, "docs/planted.md", "The Cluster.\n", "'Cluster' is not a word of ours"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "file", "text", "found"), PLANTED, ids=lambda value: getattr(value, "__name__", None)
)
def test_what_is_planted_is_found(
    copy: Path, rule: Callable[[Path], list[str]], file: str, text: str, found: str
) -> None:
    planted = copy / file
    planted.write_text(text)
    try:
        hits = [line for line in rule(copy) if found in line and planted.stem in line]
    finally:
        planted.unlink()
    assert hits, f"{rule.__name__} does not see: {text!r}"


EDITED = [
    (architecture.contract, "jlaunch/backend/src/contract.h", "killed = 2", "killed = 3", "Reason.KILLED is 2 in Python, 3 in C++"),
    (architecture.contract, "jlaunch/backend/src/contract.h", "kMaxRanks = 1024", "kMaxRanks = 512", "MAX_RANKS is 1024 in Python, 512 in C++"),
    (architecture.contract, "jlaunch/backend/src/contract.h", "recv = 7", "recv = 7, more = 8", "Collective.MORE is not in contract.py"),
    (architecture.promises, "docs/promises.md", "## 3. ", "## 9. ", "expected 1 to 8"),
    (architecture.promises, "docs/promises.md", "::test_", "::test_no_such_", "has no test_no_such_"),
    (architecture.promises, "docs/promises.md", "`tests/", "`", "promise 1 names no test"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "file", "old", "new", "found"), EDITED)
def test_what_is_changed_on_one_side_is_found(
    copy: Path, rule: Callable[[Path], list[str]], file: str, old: str, new: str, found: str
) -> None:
    path = copy / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    try:
        lines = rule(copy)
    finally:
        path.write_text(text)
    assert any(found in line for line in lines), lines
