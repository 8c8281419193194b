"""The rules that the code keeps, as functions from a tree to its violations.

Each takes the root of a checkout and returns a line for each violation. ``test_architecture.py`` runs
them on this checkout, and on copies in which one thing has been planted that must be found.
The exceptions below may become fewer, never more.
"""

from __future__ import annotations

import ast
import fnmatch
import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

MAY_IMPORT = {
    "cli": {"runtime", "io", "view", "core"},
    "runtime": {"io", "view", "core"},
    "io": {"core"},
    "view": {"core"},
    "core": set(),
    "backend": set(),
    "__main__": {"cli"},
    "__init__": {"backend", "runtime"},
}
"""cli -> runtime -> { io | view } -> core; the backend is an island."""

MAY_REACH_THE_ISLAND = ("io/control_block.py", "io/watch.py", "runtime/rank*.py", "runtime/script.py")
"""A rank's own half, and the port through which an agent reads control blocks."""

CORE_MAY_IMPORT = {
    "__future__", "abc", "bisect", "collections", "dataclasses", "enum", "functools", "heapq", "itertools", "math",
    "msgspec", "operator", "random", "re", "signal", "string", "struct", "types", "typing",
}  # fmt: skip
"""Values only. ``random``: a ``random.Random`` is passed in; ``signal``: the names of signals."""

VIEW_MAY_IMPORT = CORE_MAY_IMPORT | {"json"}

MAX_FUNCTION_LINES = 70
MAX_MODULE_LINES = 400
MAX_CPP_LINES = 500

HABITS_ALLOWED = {
    (
        "jlaunch/runtime/guardian.py",
        "sleeps",
    ): "where the system has no pidfd; its parent is dead, nobody will tell",
    ("tests/*/programs/*", "sleeps"): "the program's own work: what is launched, not how it is tested",
    ("tests/runtime/test_script.py", "*pickle*"): "that users can pickle our errors is what it tests",
}

WORDS_ALLOWED = {
    ("jlaunch/backend/tests/soft_provider_test.cpp", "node"): "as in the soft provider",
    ("jlaunch/backend/soft/*", "node"): "verbs' word for what a device belongs to",
    ("jlaunch/backend/src/robust_life.cpp", "node"): "an element of the kernel's robust list",
    ("jlaunch/*", "daemon"): "a thread's attribute in Python",
    ("jlaunch/*.py", "zombie"): "the system's word for a process that is not reaped yet",
    ("docs/glossary.md", "*"): "it names the words not to use",
    ("docs/adr/*", "worker"): "names of other projects' parts",
}


def python_files(root: Path, *folders: str) -> Iterator[Path]:
    """All Python files below these folders."""
    for folder in folders or ("jlaunch", "tests"):
        yield from sorted((root / folder).rglob("*.py"))


def imports(root: Path) -> list[str]:
    """Imports against the direction of the rooms, also those inside functions."""
    found = []
    for path in python_files(root, "jlaunch"):
        inside = path.relative_to(root / "jlaunch")
        room = inside.parts[0] if len(inside.parts) > 1 else inside.stem
        for line, module in _imported(path, root):
            parts = module.split(".")
            if parts[0] != "jlaunch" or len(parts) < 2 or parts[1] == room:
                continue
            reaches_island = parts[1] == "backend" and _matches(inside.as_posix(), MAY_REACH_THE_ISLAND)
            if parts[1] not in MAY_IMPORT.get(room, set()) and not reaches_island:
                found.append(f"{inside}:{line}: {room} must not import {module}")
    return found


def strangers(root: Path) -> list[str]:
    """The supervisor and the agent importing each other: they meet only in messages."""
    found = []
    for path in python_files(root, "jlaunch/runtime"):
        for line, module in _imported(path, root):
            for one, other in (("supervisor", "agent"), ("agent", "supervisor")):
                if path.stem.startswith(one) and module.startswith(f"jlaunch.runtime.{other}"):
                    found.append(f"{path.name}:{line}: {one} must not import {module}")
    return found


def purity(root: Path) -> list[str]:
    """Anything in core or view that could touch the world."""
    found = []
    for room, allowed in (("core", CORE_MAY_IMPORT), ("view", VIEW_MAY_IMPORT)):
        for path in python_files(root, f"jlaunch/{room}"):
            for line, module in _imported(path, root):
                if module.split(".")[0] not in allowed | {"jlaunch"}:
                    found.append(f"{room}/{path.name}:{line}: {room} is pure and must not import {module}")
            for node in _nodes(path):
                if isinstance(node, ast.Call) and _name(node.func) in ("open", "print", "input"):
                    found.append(
                        f"{room}/{path.name}:{node.lineno}: {room} is pure and must not {_name(node.func)}"
                    )
    return found


def sizes(root: Path) -> list[str]:
    """Functions and files that are too long to be read at one go."""
    found = []
    for path in python_files(root, "jlaunch", "tests"):
        name = path.relative_to(root)
        if (lines := len(path.read_text().splitlines())) > MAX_MODULE_LINES:
            found.append(f"{name}: {lines} lines, at most {MAX_MODULE_LINES}")
        for node in _nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    found.append(
                        f"{name}:{node.lineno}: {node.name} has {length} lines, at most {MAX_FUNCTION_LINES}"
                    )
    for path in cpp_files(root):
        text = path.read_text().splitlines()
        if len(text) > MAX_CPP_LINES:
            found.append(f"{path.relative_to(root)}: {len(text)} lines, at most {MAX_CPP_LINES}")
        found += [
            f"{path.relative_to(root)}:{at}: a function of {n} lines" for at, n in _long_cpp_functions(text)
        ]
    return found


def cpp_files(root: Path) -> list[Path]:
    """All C++ of the backend."""
    return sorted(p for p in (root / "jlaunch" / "backend").rglob("*") if p.suffix in (".h", ".cpp"))


def habits(root: Path) -> list[str]:
    """Sleeps, shells, pickles, swallowed exceptions."""
    seen: list[tuple[str, int, str]] = []
    for path in python_files(root, "jlaunch", "tests", ".ci"):
        name = path.relative_to(root).as_posix()
        for node in _nodes(path):
            if isinstance(node, ast.Call) and (what := _bad_call(node)):
                seen.append((name, node.lineno, what))
            if isinstance(node, ast.ExceptHandler) and _swallows(node):
                seen.append((name, node.lineno, "catches everything and says nothing"))
        seen += [
            (name, line, f"uses {module}") for line, module in _imported(path, root) if module in _BANNED
        ]
    return [
        f"{name}:{line}: {what}" for name, line, what in seen if not _is_allowed(name, what, HABITS_ALLOWED)
    ]


def words(root: Path) -> list[str]:
    """Words that the glossary rules out, in code, comments, messages and documents."""
    glossary = (root / "docs" / "glossary.md").read_text()
    section = glossary.split("## Words not used", 1)[1]
    banned = re.findall(r"^- \*\*(\w+)\*\*", section, re.MULTILINE)
    if not banned:
        return ["docs/glossary.md: no list under 'Words not used'"]
    pattern = re.compile(rf"\b({'|'.join(banned)})s?\b", re.IGNORECASE)
    found = []
    for path in _product_text(root):
        name = path.relative_to(root).as_posix()
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for match in pattern.finditer(line):
                if not _is_allowed(name, match[1].lower(), WORDS_ALLOWED):
                    found.append(f"{name}:{number}: {match[0]!r} is not a word of ours")
            if re.search(r"\bDESIGN\b", line):
                found.append(f"{name}:{number}: cites a page that is not in the repository")
    return found


def contract(root: Path) -> list[str]:
    """Names and numbers in which ``contract.py`` and ``contract.h`` differ."""
    header = (root / "jlaunch/backend/src/contract.h").read_text()
    tree = ast.parse((root / "jlaunch/core/contract.py").read_text())
    here, there = _python_contract(tree), _cpp_contract(header)
    shared = [name for name in there if name in here]
    found = [f"contract.h: {name} is not in contract.py" for name in there if name not in here]
    for name in shared:
        if here[name] != there[name]:
            found.append(f"contract: {name} is {here[name]} in Python, {there[name]} in C++")
    return found


def promises(root: Path) -> list[str]:
    """Promises without a test, and tests named in ``docs/promises.md`` that do not exist."""
    text = (root / "docs" / "promises.md").read_text()
    _, *sections = re.split(r"^## (\d+)\. ", text, flags=re.MULTILINE)
    numbers = [int(number) for number in sections[::2]]
    found = []
    if numbers != list(range(1, 9)):
        found.append(f"docs/promises.md: found promises {numbers}, expected 1 to 8")
    named = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
    for number, section in zip(numbers, sections[1::2], strict=True):
        if not named.search(section):
            found.append(f"docs/promises.md: promise {number} names no test")
    for file, test in named.findall(text):
        nodes = _nodes(root / file) if (root / file).exists() else ()
        if test not in [node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)]:
            found.append(f"docs/promises.md: {file} has no {test}")
    return found


_BANNED = ("pickle", "marshal", "shelve", "imp")


def _bad_call(node: ast.Call) -> str | None:
    name = _name(node.func)
    if name in ("time.sleep", "asyncio.sleep", "sleep"):
        return "sleeps"
    if name in ("os.system", "os.popen", "eval", "exec") or name.startswith("pickle."):
        return f"calls {name}"
    if any(k.arg == "shell" and isinstance(k.value, ast.Constant) and k.value.value for k in node.keywords):
        return "starts a shell"
    if any(k.arg == "preexec_fn" for k in node.keywords):
        return "uses preexec_fn"
    return None


def _swallows(handler: ast.ExceptHandler) -> bool:
    broad = handler.type is None or _name(handler.type) in ("Exception", "BaseException")
    return broad and all(isinstance(s, ast.Pass | ast.Continue) for s in handler.body)


def _imported(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """Line and absolute name of every module that a file imports; names may be of attributes."""
    package = path.relative_to(root).parent.parts
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            yield node.lineno, module
            if module == "jlaunch" or node.module is None:
                for alias in node.names:
                    yield node.lineno, f"{module}.{alias.name}"


def _nodes(path: Path) -> tuple[ast.AST, ...]:
    return _parsed(path.read_text())


@functools.cache
def _parsed(text: str) -> tuple[ast.AST, ...]:
    """By text, not by path: a copy of the tree costs nothing to look at again."""
    return tuple(ast.walk(ast.parse(text)))


def _name(node: ast.expr) -> str:
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def _is_allowed(name: str, what: str, allowed: Iterable[tuple[str, str]]) -> bool:
    return any(fnmatch.fnmatch(name, file) and fnmatch.fnmatch(what, pattern) for file, pattern in allowed)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def _product_text(root: Path) -> Iterator[Path]:
    for pattern in ("jlaunch/**/*.py", "jlaunch/**/*.pyi", "docs/**/*.md", "configs/*", "*.md"):
        yield from sorted(root.glob(pattern))
    yield from cpp_files(root)


def _long_cpp_functions(text: list[str]) -> Iterator[tuple[int, int]]:
    """Functions by layout: a signature in column 0 that opens a brace, and the brace in column 0 that ends it."""
    began = 0
    for number, line in enumerate(text, 1):
        if (
            line.endswith("{")
            and line[:1].strip()
            and not line.startswith(("namespace", "class", "struct", "enum"))
        ):
            began = number
        elif line == "}" and began:
            if number - began + 1 > MAX_FUNCTION_LINES:
                yield began, number - began + 1
            began = 0
        elif line == "};":
            began = 0


def _python_contract(tree: ast.Module) -> dict[str, int]:
    found: dict[str, int] = {}
    for node in tree.body:
        if (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and isinstance(node.value, ast.Constant)
        ):
            if isinstance(node.value.value, int):
                found[node.target.id] = node.value.value
        elif isinstance(node, ast.ClassDef):
            for item in node.body:
                if (
                    isinstance(item, ast.Assign)
                    and isinstance(item.value, ast.Constant)
                    and isinstance(item.value.value, int)
                ):
                    found[f"{node.name}.{ast.unparse(item.targets[0])}"] = item.value.value
    # C++ has a value for "no reason"; in Python there is just no loss then.
    return found | {"Reason.NONE": 0}


def _cpp_contract(header: str) -> dict[str, int]:
    found = {}
    for name, value in re.findall(r"inline constexpr [\w:]+ k(\w+) = (\d+);", header):
        found[re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()] = int(value)
    for enum, body in re.findall(r"enum class (\w+)[^{]*\{([^}]*)\}", header):
        for name, value in re.findall(r"(\w+) = (\d+)", body):
            found[f"{enum}.{name.upper()}"] = int(value)
    return found
