"""``jlaunch run``: arguments in, a frozen job out, or one line and exit 2."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from jlaunch.cli.main import main
from jlaunch.core.spec import Backend, JobSpec, OutputMode, Policy, StdinMode, Timeouts, Verbs
from tests.cli.conftest import Supervisor

Parse = Callable[..., JobSpec]
Refused = Callable[..., str]


# ---- what becomes of good input ------------------------------------------------------------------


def test_defaults_are_those_of_the_design(parse: Parse, here: Path) -> None:
    spec = parse("train.py")
    assert spec.program == ("train.py",)
    assert spec.world_size == 1
    assert [host.name for host in spec.hosts] == ["127.0.0.1"]
    assert spec.cwd == str(here)
    assert spec.env == ()
    assert spec.policy is Policy.RAISE
    assert spec.backend is Backend.JACCL
    assert spec.verbs is Verbs.SOFT
    assert spec.timeouts == Timeouts(
        deadline_s=10.0,
        max_pause_s=10.0,
        straggler_timeout_s=1800.0,
        host_timeout_s=5.0,
        restart_backoff_s=1.0,
        grace_s=10.0,
        start_timeout_s=300.0,
        lease_s=180.0,
    )
    assert spec.max_restarts == 3
    assert spec.output is OutputMode.PREFIX
    assert spec.stdin is StdinMode.ALL
    assert spec.log_dir is None
    assert spec.starting_port == 32323
    assert spec.connections_per_ip == 1
    assert not spec.verbose


def test_every_option_arrives(parse: Parse, supervisor: Supervisor, here: Path) -> None:
    (here / "sub").mkdir()
    (here / "sub" / "job.py").write_text("")
    spec = parse(
        "-n", "4", "--on-peer-loss", "restart", "--deadline", "1s", "--max-pause", "5s", "--straggler-timeout", "2h",
        "--host-timeout", "2s", "--max-restarts", "7", "--restart-backoff", "250ms", "--grace", "0s",
        "--start-timeout", "forever", "--lease", "9s", "--verbs", "soft", "--output", "raw", "--stdin", "none",
        "--log-dir", "logs", "--events", "events.jsonl", "--cwd", "sub", "--python", sys.executable, "-p", "4000",
        "--env", "A=1", "--env", "B=x=y", "--env", "A=2", "--env", "EMPTY", "--verbose", "job.py", "-n", "9",
    )  # fmt: skip
    assert spec.program == ("job.py", "-n", "9")
    assert spec.world_size == 4
    assert spec.policy is Policy.RESTART
    assert spec.timeouts == Timeouts(
        deadline_s=1.0,
        max_pause_s=5.0,
        straggler_timeout_s=7200.0,
        host_timeout_s=2.0,
        restart_backoff_s=0.25,
        grace_s=0.0,
        start_timeout_s=math.inf,
        lease_s=9.0,
    )
    assert spec.max_restarts == 7
    assert spec.output is OutputMode.RAW
    assert spec.stdin is StdinMode.NONE
    assert spec.cwd == str(here / "sub")
    assert spec.log_dir == str(here / "logs")
    assert spec.starting_port == 4000
    assert dict(spec.env) == {"A": "2", "B": "x=y", "EMPTY": ""}
    assert spec.verbose
    assert supervisor.python == sys.executable
    assert supervisor.events == str(here / "events.jsonl")


def test_max_pause_is_the_deadline_and_forever_under_wait(parse: Parse) -> None:
    assert parse("--deadline", "3s", "train.py").timeouts.max_pause_s == 3.0
    assert parse("--deadline", "3s", "--on-peer-loss", "wait", "train.py").timeouts.max_pause_s == math.inf
    limited = parse("--on-peer-loss", "wait", "--max-pause", "1m", "train.py")
    assert limited.timeouts.max_pause_s == 60.0


def test_every_job_has_an_id_of_its_own(parse: Parse) -> None:
    ids = {parse("train.py").job for _ in range(20)}
    assert len(ids) == 20
    assert all(len(job) == 12 and job.isalnum() for job in ids)


def test_the_exit_code_is_the_supervisors(supervisor: Supervisor, here: Path) -> None:
    supervisor.code = 137
    assert main(["train.py"]) == 137


# ---- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--deadline", "10"], "--deadline: found '10', expected a duration such as 500ms, 10s, 5m, 2h or forever (did you mean 10s?)"),
        (["--deadline", "0s"], "--deadline: found '0s', expected more than nothing"),
        (["--grace", "forever"], "--grace: found 'forever', expected a duration that ends"),
        (["--lease", "1s"], "--lease: found '1s', expected 2s or more"),
        (["-n", "0"], "--repeat-hosts: found '0', expected a whole number from 1 to 1024"),
        (["-n", "1025"], "--repeat-hosts: found '1025', expected a whole number from 1 to 1024"),
        (["-n", "two"], "--repeat-hosts: found 'two', expected a whole number from 1 to 1024"),
        (["-n", "-1"], "--repeat-hosts: found '-1', expected a whole number from 1 to 1024"),
        (["-p", "70000"], "--starting-port: found '70000', expected a whole number from 1 to 65535"),
        (["--max-restarts", "-1"], "--max-restarts: found '-1', expected a whole number from 0 to 1000000"),
        (["--on-peer-loss", "ignore"], "--on-peer-loss: found 'ignore', expected raise or wait or restart or stop"),
        (["--output", "json"], "--output: found 'json', expected prefix or raw or rank0 or none"),
        (["--env", "=x"], "--env '=x': found a name that is no variable's, expected K=V"),
        (["--env", "A-B=x"], "--env 'A-B=x': found a name that is no variable's, expected K=V"),
        (["--env", "1A=x"], "--env '1A=x': found a name that is no variable's, expected K=V"),
        (["--env", "MLX_RANK=3"], "--env MLX_RANK: found a variable that jlaunch sets itself, expected another"),
        (["--env", "JLAUNCH_EPOCH=3"], "--env JLAUNCH_EPOCH: found a variable that jlaunch sets itself, expected another"),
        (["--hosts", "127.0.0.1,,x"], "--hosts '127.0.0.1,,x': found an empty name, expected names separated by commas"),
        (["--hosts", "-oProxyCommand=x"], "--hosts: found '-oProxyCommand=x', expected the name or the address of a host"),
        (["--hosts", "a", "--hostfile", "b"], "--hostfile: found --hosts as well, expected one of the two"),
        (["--hostfile", "no.json"], "no.json: cannot read the hosts file: No such file or directory"),
        (["--hosts", "./no"], "./no: cannot read the hosts file: No such file or directory"),
        (["--config", "no.toml"], "no.toml: cannot read the job file: No such file or directory"),
        (["--cwd", "no"], "--cwd no: found nothing, expected a directory"),
        (["--cwd", "train.py"], "--cwd train.py: found a file, expected a directory"),
        (["--events", "no/file"], "--events no/file: cannot be written: No such file or directory"),
        (["--events", "."], "--events .: cannot be written: Is a directory"),
        (["--log-dir", "train.py"], "--log-dir train.py: cannot be made: File exists"),
        (["--log-dir", "/proc/none"], "--log-dir /proc/none: cannot be made: No such file or directory"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(refused: Refused, arguments: list[str], line: str) -> None:
    assert refused(*arguments, "train.py") == line


@pytest.mark.parametrize(
    ("arguments", "beginning"),
    [
        (
            ["--on-peer-loss", "replace"],
            "--on-peer-loss: replace: this version of jlaunch does not do that yet",
        ),
        (
            ["--on-peer-loss", "shrink"],
            "--on-peer-loss: shrink: this version of jlaunch does not do that yet",
        ),
        (["--backend", "mpi"], "--backend: mpi: this version of jlaunch does not do that yet"),
        (["--verbs", "system"], "--verbs: system: this version of jlaunch does not do that yet"),
        (["--dashboard"], "--dashboard: this version of jlaunch does not do that yet"),
        (["--web", "127.0.0.1:8000"], "--web: this version of jlaunch does not do that yet"),
        (["--hosts", "10.255.255.1"], "host 10.255.255.1: found a host other than this machine"),
        (["--hosts", "localhost,mac2.local"], "host mac2.local: found a host other than this machine"),
        (["--frobnicate"], "No such option"),
        (["--deadline"], "Option '--deadline' requires an argument"),
    ],
)
def test_what_is_not_there_yet_is_refused_not_ignored(
    refused: Refused, arguments: list[str], beginning: str
) -> None:
    assert refused(*arguments, *(["train.py"] if arguments[-1] != "--deadline" else [])).startswith(beginning)


def test_options_of_other_backends_are_said_to_be_unused(
    parse: Parse, capfd: pytest.CaptureFixture[str]
) -> None:
    parse("--mpi-arg", "-x", "--nccl-port", "1", "--connections-per-ip", "2", "train.py")
    assert capfd.readouterr().err.splitlines() == [
        "jlaunch: warning: --connections-per-ip is read by the ring backend only",
        "jlaunch: warning: --nccl-port is read by the nccl backend only",
        "jlaunch: warning: --mpi-arg is read by the mpi backend only",
    ]


@pytest.mark.parametrize("backend", ["ring", "nccl"])
def test_mlx_own_backends_end_the_others_of_a_lost_rank(parse: Parse, refused: Refused, backend: str) -> None:
    spec = parse("--backend", backend, "train.py")
    assert (spec.backend, spec.policy) == (Backend(backend), Policy.STOP)
    assert parse("--backend", backend, "--on-peer-loss", "restart", "train.py").policy is Policy.RESTART
    for policy in ("raise", "wait"):
        assert refused("--backend", backend, "--on-peer-loss", policy, "train.py").startswith(
            f"--on-peer-loss: found {policy} with --backend {backend}, whose collectives cannot be told of a loss"
        )


def test_options_of_a_backend_that_reads_them_are_taken_in_silence(
    parse: Parse, capfd: pytest.CaptureFixture[str]
) -> None:
    assert parse("--backend", "ring", "--connections-per-ip", "2", "train.py").connections_per_ip == 2
    assert parse("--backend", "nccl", "train.py").starting_port == 12345
    assert parse("--backend", "nccl", "--nccl-port", "7", "train.py").starting_port == 7
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("backend", ["jaccl", "ring", "nccl"])
def test_a_fast_fence_is_warned_about_where_a_wait_may_never_end(
    parse: Parse, capfd: pytest.CaptureFixture[str], backend: str
) -> None:
    parse("--backend", backend, "--env", "MLX_METAL_FAST_SYNCH=0", "train.py")
    assert capfd.readouterr().err == ""
    parse("--backend", backend, "--env", "MLX_METAL_FAST_SYNCH=1", "train.py")
    said = capfd.readouterr().err
    if backend == "jaccl":
        assert said == ""
    else:
        assert said.startswith(f"jlaunch: warning: MLX_METAL_FAST_SYNCH=1 with --backend {backend}: ")
        assert said.count("\n") == 1


# ---- hosts ---------------------------------------------------------------------------------------


def test_all_names_of_this_machine_are_one_host(parse: Parse) -> None:
    names = ["127.0.0.1", "localhost", "::1", "127.0.0.53", socket.gethostname()]
    spec = parse("--hosts", ",".join(names), "train.py")
    assert len(spec.hosts) == 1
    assert spec.hosts[0].is_local
    assert spec.placement == (0,) * 5


def test_an_address_of_this_machine_is_local(parse: Parse, monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    entry = SimpleNamespace(family=socket.AF_INET, address="10.9.8.7")
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"en0": [entry]})
    assert parse("--hosts", "10.9.8.7", "train.py").hosts[0].is_local


def test_n_repeats_each_host_of_a_list_and_of_a_file(parse: Parse, here: Path) -> None:
    (here / "hosts.json").write_text('[{"ssh": "127.0.0.1"}, {"ssh": "localhost"}]')
    assert parse("--hosts", "127.0.0.1,localhost", "-n", "2", "train.py").world_size == 4
    assert parse("--hostfile", "hosts.json", "train.py").world_size == 2
    assert parse("--hostfile", "hosts.json", "-n", "3", "train.py").world_size == 6
    assert parse("--hosts", "hosts.json", "-n", "3", "train.py").world_size == 6


def test_n_does_not_repeat_a_device_matrix(refused: Refused, here: Path) -> None:
    (here / "mesh.json").write_text(
        '[{"ssh": "127.0.0.1", "rdma": [null, "rdma_en1"]}, {"ssh": "::1", "rdma": ["rdma_en1", null]}]'
    )
    line = refused("--hostfile", "mesh.json", "-n", "2", "--verbs", "soft", "train.py")
    assert line == "-n 2: found a device matrix in mesh.json, expected no -n: it has one row for each rank"


def test_the_number_of_ranks_is_bounded(refused: Refused) -> None:
    assert refused("--hosts", "127.0.0.1,localhost", "-n", "600", "train.py") == (
        "-n 600: found 1200 ranks, expected at most 1024"
    )


def test_auto_verbs_never_fall_back_in_silence(parse: Parse, refused: Refused, here: Path) -> None:
    (here / "mesh.json").write_text(
        '[{"ssh": "127.0.0.1", "rdma": [null, "rdma_en1"]}, {"ssh": "::1", "rdma": ["rdma_en1", null]}]'
    )
    assert "found a device matrix" in refused("--hostfile", "mesh.json", "train.py")
    assert parse("--hostfile", "mesh.json", "--verbs", "soft", "train.py").verbs is Verbs.SOFT


def test_the_hosts_files_backend_and_variables_count(parse: Parse, refused: Refused, here: Path) -> None:
    (here / "a.json").write_text(
        '{"backend": "jaccl", "envs": ["A=1", "B=1"], "hosts": [{"ssh": "127.0.0.1"}]}'
    )
    (here / "b.json").write_text('{"backend": "ring", "hosts": [{"ssh": "127.0.0.1"}]}')
    (here / "c.json").write_text('{"backend": "rong", "hosts": [{"ssh": "127.0.0.1"}]}')
    assert dict(parse("--hostfile", "a.json", "--env", "B=2", "train.py").env) == {"A": "1", "B": "2"}
    assert parse("--hostfile", "b.json", "train.py").backend is Backend.RING
    assert parse("--hostfile", "b.json", "--backend", "jaccl", "train.py").backend is Backend.JACCL
    assert "found 'rong'" in refused("--hostfile", "c.json", "train.py")


# ---- the door itself -----------------------------------------------------------------------------


def test_help_names_every_option_that_works(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help"]) == 0
    shown = capfd.readouterr().out
    for option in (
        "--hosts",
        "--on-peer-loss",
        "--deadline",
        "--max-pause",
        "--events",
        "--config",
        "--starting-port",
    ):
        assert option in shown
    assert "--dashboard" not in shown
    assert main(["--help"]) == 0
    assert "PROGRAM" in capfd.readouterr().out


def test_an_interrupt_before_the_job_has_started_is_no_traceback(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("jlaunch.runtime.supervisor.run", interrupted)
    assert main(["train.py"]) == 130
    assert "Traceback" not in capfd.readouterr().err


def test_parsing_imports_nothing_heavy(here: Path) -> None:
    """What a command costs before it starts anything: click, and the pure core."""
    code = (
        "import sys; from jlaunch.cli.main import main; main(['--print-python']);"
        "heavy = {'zmq', 'psutil', 'paramiko', 'numpy', 'mlx', 'asyncio', 'jlaunch.backend'} & set(sys.modules);"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    root = Path(__file__).parents[2]
    environ = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
