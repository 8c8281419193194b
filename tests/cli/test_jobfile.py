"""``--config``: a TOML job file, and flags that win."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jlaunch.core.spec import JobSpec, OutputMode, Policy

Parse = Callable[..., JobSpec]
Refused = Callable[..., str]

JOB = """
program = ["train.py", "--epochs", "3"]
repeat-hosts = 4
on-peer-loss = "wait"
deadline = "1s"
max-restarts = 5
output = "raw"
verbose = true

[env]
A = "1"
B = 2
"""


def test_a_job_file_says_it_all(parse: Parse, here: Path) -> None:
    (here / "job.toml").write_text(JOB)
    spec = parse("--config", "job.toml")
    assert spec.program == ("train.py", "--epochs", "3")
    assert spec.world_size == 4
    assert spec.policy is Policy.WAIT
    assert spec.timeouts.deadline_s == 1.0
    assert spec.max_restarts == 5
    assert spec.output is OutputMode.RAW
    assert spec.verbose
    assert dict(spec.env) == {"A": "1", "B": "2"}


def test_flags_win_wherever_they_stand(parse: Parse, here: Path) -> None:
    (here / "job.toml").write_text(JOB)
    (here / "other.py").write_text("")
    spec = parse("-n", "2", "--config", "job.toml", "--deadline", "7s", "--env", "B=3", "other.py")
    assert spec.program == ("other.py",)
    assert spec.world_size == 2
    assert spec.timeouts.deadline_s == 7.0
    assert dict(spec.env) == {"A": "1", "B": "3"}


def test_hosts_may_be_a_list(parse: Parse, here: Path) -> None:
    (here / "job.toml").write_text('hosts = ["127.0.0.1", "localhost"]\nenv = ["A=1"]\n')
    spec = parse("--config", "job.toml", "train.py")
    assert spec.world_size == 2
    assert spec.env == (("A", "1"),)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('deadline = "ten"', "job.toml: deadline: found 'ten', expected a duration such as 500ms, 10s, 5m, 2h or forever"),
        ("deadline = true", "job.toml: deadline: found True, expected a string or a number"),
        ('verbose = "yes"', "job.toml: verbose: found 'yes', expected true or false"),
        ("repeat-hosts = 0", "job.toml: repeat-hosts: found '0', expected a whole number from 1 to 1024"),
        ("repeat_hosts = 2", "job.toml: repeat_hosts: found an unknown key, expected an option of jlaunch run (did you mean repeat-hosts?)"),
        ("colour = 1", "job.toml: colour: found an unknown key, expected an option of jlaunch run"),
        ('config = "x"', "job.toml: config: found an unknown key, expected an option of jlaunch run"),
        ('program = "train.py"', "job.toml: program: found 'train.py', expected a list of strings"),
        ("env = [1]", "job.toml: env: found [1], expected a list of strings"),
        ('on-peer-loss = "replace"', "job.toml: on-peer-loss: replace: this version of jlaunch does not do that yet (it does raise, wait, restart, stop)"),
    ],
)  # fmt: skip
def test_mistakes_name_file_and_key(refused: Refused, here: Path, text: str, line: str) -> None:
    (here / "job.toml").write_text(text)
    assert refused("--config", "job.toml", "train.py") == line


def test_no_toml(refused: Refused, here: Path) -> None:
    (here / "job.toml").write_text("a = = 1\n")
    assert refused("--config", "job.toml", "train.py").startswith("job.toml: found ")
