"""The documents say what the code does: events and their fields, options, links."""

from __future__ import annotations

import re
import types
from pathlib import Path
from typing import get_args

import click
import msgspec
import pytest

from jlaunch.cli.main import jlaunch
from jlaunch.core import actions, contract, events

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
README = (ROOT / "README.md").read_text()

NEVER_LOGGED = {"AgentHeard", "DeadlineReached"}
"""An envelope, whose content is logged; and the timer."""


def logged() -> dict[str, set[str]]:
    """What may stand in an event log: kind and fields, as the code has them."""
    kinds: list[type[msgspec.Struct]] = [actions.RecordVerdict, actions.EndJob]
    for union in (events.JobEvent, events.AgentEvent):
        assert isinstance(union, types.UnionType)
        kinds += get_args(union)
    return {
        kind.__name__: {"verdict_kind" if name == "kind" else name for name in kind.__struct_fields__}
        for kind in kinds
        if kind.__name__ not in NEVER_LOGGED
    }


def documented() -> dict[str, set[str]]:
    """The same, as docs/events.md has them."""
    found: dict[str, set[str]] = {}
    for section in re.split(r"^## ", (ROOT / "docs/events.md").read_text(), flags=re.MULTILINE)[1:]:
        common = {"rank", "epoch"} if section.startswith("Of a rank") else set()
        for kind, fields in re.findall(r"^\| `(\w+)` \| ([^|]*)\|", section, re.MULTILINE):
            found[kind] = common | set(re.findall(r"`(\w+)`", fields))
    return found


def test_the_event_log_is_documented_kind_by_kind_and_field_by_field() -> None:
    assert documented() == logged()


def test_the_readme_lists_every_option_of_mlx_launch_and_of_losses() -> None:
    run = jlaunch.commands["run"]
    sections = {
        max(param.opts, key=len): getattr(param, "section", "")
        for param in run.params
        if isinstance(param, click.Option) and not param.hidden
    }
    documents = README + (ROOT / "docs/options.md").read_text()
    assert [name for name in sections if f"`{name}" not in documents and f"/{name}" not in documents] == []


def test_the_readme_has_every_exit_code() -> None:
    table = README.split("## Exit codes")[1].split("\n## ")[0]
    numbers = set(map(int, re.findall(r"\b\d+\b", table)))
    assert {int(code) for code in contract.ExitCode} <= numbers


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
        if not link.startswith("http"):
            assert (path.parent / link).exists(), f"{path.name} links to {link}"


def test_every_decision_is_listed() -> None:
    listed = set(re.findall(r"\((\d{4}-[\w-]+\.md)\)", (ROOT / "docs/adr/README.md").read_text()))
    assert listed == {path.name for path in (ROOT / "docs/adr").glob("0*.md")}
