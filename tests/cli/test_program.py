"""Which program ``jlaunch run`` starts: found before anything is started, and its words kept as they are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jlaunch.cli.main import main
from jlaunch.core.spec import JobSpec
from tests.cli.conftest import Supervisor

Parse = Callable[..., JobSpec]
Refused = Callable[..., str]


def test_options_after_the_program_are_its_own(parse: Parse) -> None:
    assert parse("train.py", "--verbose", "-n", "4", "--", "--x").program == (
        "train.py", "--verbose", "-n", "4", "--", "--x",
    )  # fmt: skip


def test_two_dashes_end_our_options(parse: Parse) -> None:
    spec = parse("-n", "2", "--", "sh", "-c", "exit 0")
    assert spec.program == ("sh", "-c", "exit 0")
    assert spec.world_size == 2


def test_arguments_are_kept_byte_by_byte(parse: Parse) -> None:
    odd = ["a b", "it's", '"', "$HOME", "`x`", "new\nline", "ünï", "", "--", "\udcff"]
    assert parse("train.py", *odd).program == ("train.py", *odd)


def test_a_first_word_that_names_a_subcommand_is_one(parse: Parse, here: Path) -> None:
    program = here / "status"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert parse("./status").program == ("./status",)
    assert parse("--", "./status").program == ("./status",)
    assert parse("run", "train.py").program == ("train.py",)


def test_subcommands_to_come_are_refused_by_name(refused: Refused) -> None:
    for word in ("top", "logs", "stack", "stop", "pause", "resume", "doctor", "bench"):
        assert refused(word).startswith(f"{word}: this version of jlaunch does not do that yet")


def test_no_program(refused: Refused) -> None:
    assert refused().startswith("PROGRAM: found nothing to run")
    assert refused("-n", "2").startswith("PROGRAM: found nothing to run")
    assert refused("--").startswith("PROGRAM: found nothing to run")


def test_programs_that_cannot_start(refused: Refused, here: Path) -> None:
    (here / "plain.sh").write_text("#!/bin/sh\n")
    (here / "folder.py").mkdir()
    (here / "folder").mkdir()
    assert refused("missing.py").startswith(f"missing.py: found no such file in {here}")
    assert refused("./missing.sh").startswith("./missing.sh: found no such file")
    assert refused("no-such-command-anywhere").startswith(
        "no-such-command-anywhere: found no such command on PATH"
    )
    assert "write ./plain.sh" in refused("plain.sh")
    assert refused("./plain.sh").startswith("./plain.sh: found a file that is not executable")
    assert refused("folder.py").startswith("folder.py: found a directory")
    assert refused("./folder").startswith("./folder: found a directory")
    assert refused("").startswith("PROGRAM: found an empty word")


def test_a_script_is_sought_in_the_ranks_directory(parse: Parse, refused: Refused, here: Path) -> None:
    (here / "sub").mkdir()
    (here / "sub" / "inner.py").write_text("")
    assert parse("--cwd", "sub", "inner.py").program == ("inner.py",)
    assert refused("--cwd", "sub", "train.py").startswith("train.py: found no such file in")


def test_a_command_is_sought_on_the_ranks_path(parse: Parse, refused: Refused, here: Path) -> None:
    tool = here / "bin" / "tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    assert parse("--env", f"PATH={tool.parent}", "tool").program == ("tool",)
    assert refused("tool").startswith("tool: found no such command on PATH")


def test_python_goes_in_front_of_any_program(parse: Parse, supervisor: Supervisor, refused: Refused) -> None:
    assert parse("--python", sys.executable, "--", "-m", "this").program == ("-m", "this")
    assert supervisor.python == sys.executable
    assert refused("--python", "/no/such/python", "train.py").startswith(
        "--python /no/such/python: found no such"
    )
    assert refused("--python", sys.executable, "missing").startswith("missing: found no such file")


def test_print_python(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--print-python"]) == 0
    assert capfd.readouterr().out == sys.executable + "\n"
    assert main(["--python", "/x/python", "--print-python"]) == 0
    assert capfd.readouterr().out == "/x/python\n"
