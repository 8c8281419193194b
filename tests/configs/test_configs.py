"""Every example in ``configs/`` is one that works: it is parsed, and made into a job as far as this version goes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from jlaunch.cli.hostsfile import read_hosts_file
from jlaunch.cli.main import main
from jlaunch.core.spec import JobSpec

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
HOSTS_FILES = sorted(CONFIGS.glob("*.json"))
JOB_FILES = sorted(CONFIGS.glob("*.toml"))


def test_every_file_is_of_a_kind_that_is_tested() -> None:
    assert sorted(CONFIGS.iterdir()) == sorted([*HOSTS_FILES, *JOB_FILES])
    assert {"one-machine.json", "four-mac-mesh.json"} <= {path.name for path in HOSTS_FILES}


@pytest.mark.parametrize("path", HOSTS_FILES, ids=lambda path: path.name)
def test_hosts_files(path: Path) -> None:
    found = read_hosts_file(str(path))
    assert len(found.hosts) == 4
    assert found.warnings == ()
    for index, host in enumerate(found.hosts):
        assert [not devices for devices in host.rdma] in ([], [peer == index for peer in range(4)])


@pytest.mark.parametrize("path", [*JOB_FILES, CONFIGS / "one-machine.json"], ids=lambda path: path.name)
def test_files_for_one_machine_make_a_job(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[JobSpec] = []

    def run(spec: JobSpec, *, python: str | None, events: str | None) -> int:
        jobs.append(spec)
        return 0

    monkeypatch.setattr("jlaunch.runtime.supervisor.run", run)
    shutil.copytree(CONFIGS, tmp_path / "configs")
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    option = "--config" if path.suffix == ".toml" else "--hostfile"
    assert main([option, f"configs/{path.name}", "train.py"]) == 0
    assert jobs[0].world_size == 4
