"""What a rank finds in its environment."""

from __future__ import annotations

import json
import os
import sys

import pytest

from jlaunch.core.spec import Backend, HostSpec, JobSpec, OutputMode
from jlaunch.runtime.environment import (
    STARTUP_DIR,
    agent_environment,
    backend_files,
    command_line,
    rank_environment,
)


def spec(**fields: object) -> JobSpec:
    values: dict[str, object] = {
        "job": "j",
        "program": ("x.py",),
        "hosts": (HostSpec(name="127.0.0.1", ips=("127.0.0.1",)),),
        "placement": (0, 0, 0, 0),
        "cwd": "/",
    }
    return JobSpec(**(values | fields))  # type: ignore[arg-type]


def of_rank(base: dict[str, str], rank: int = 2, **fields: object) -> dict[str, str]:
    return rank_environment(
        base, spec(**fields), host=0, host_dir="/run/j/h0", rank=rank, epoch=3, restart_count=1
    )


def test_the_job_tells_a_rank_who_it_is() -> None:
    env = of_rank({})
    assert {name: env[name] for name in env if name.startswith("JLAUNCH_")} == {
        "JLAUNCH_JOB": "j",
        "JLAUNCH_RANK": "2",
        "JLAUNCH_LOCAL_RANK": "2",
        "JLAUNCH_WORLD_SIZE": "4",
        "JLAUNCH_EPOCH": "3",
        "JLAUNCH_RESTART_COUNT": "1",
        "JLAUNCH_DIR": "/run/j/h0",
        "JLAUNCH_BACKEND": "jaccl",
        "JLAUNCH_DEADLINE_S": "10.0",
        "JLAUNCH_VERBS": "soft",
        "JLAUNCH_SOFT_DIR": "/run/j/h0/soft.e3",
    }


def test_the_local_rank_counts_on_the_host() -> None:
    two = (HostSpec(name="a"), HostSpec(name="b"))
    env = rank_environment(
        {}, spec(hosts=two, placement=(1, 0, 1, 0)), host=0, host_dir="/d", rank=3, epoch=1, restart_count=0
    )
    assert env["JLAUNCH_LOCAL_RANK"] == "1"


def test_what_mlx_launch_sets_for_jaccl_is_set() -> None:
    env = of_rank({})
    assert env["MLX_RANK"] == "2"
    assert env["MLX_JACCL_COORDINATOR"] == "127.0.0.1:32323"
    assert env["MLX_IBV_DEVICES"] == "/run/j/h0/devices.json"
    assert "MLX_JACCL_RING" not in env
    assert of_rank({}, backend=Backend.JACCL_RING)["MLX_JACCL_RING"] == "1"


def test_leftovers_of_another_launcher_are_removed() -> None:
    left = {"JACCL_RANK": "7", "JACCL_RING": "1", "JACCL_IBV_DEVICES": "/x", "JACCL_COORDINATOR": "a:1"}
    env = of_rank(left | {"MLX_JACCL_RING": "1", "MLX_HOSTFILE": "/y", "MLX_METAL_FAST_SYNCH": "1"})
    assert not left.keys() & env.keys()
    assert "MLX_JACCL_RING" not in env
    assert env["MLX_HOSTFILE"] != "/y"
    assert env["MLX_METAL_FAST_SYNCH"] == "1"


def test_user_variables_win_over_inherited_ones_and_the_jobs_over_both() -> None:
    env = of_rank({"A": "inherited", "B": "inherited"}, env=(("A", "flag"), ("MLX_RANK", "9")))
    assert (env["A"], env["B"], env["MLX_RANK"]) == ("flag", "inherited", "2")


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [(None, STARTUP_DIR), ("", STARTUP_DIR), ("/a:/b", f"{STARTUP_DIR}:/a:/b")],
)
def test_the_bootstrap_comes_first_on_pythonpath(theirs: str | None, expected: str) -> None:
    env = of_rank({} if theirs is None else {"PYTHONPATH": theirs})
    assert env["PYTHONPATH"] == expected


def test_output_is_unbuffered_unless_the_user_said_otherwise() -> None:
    assert of_rank({})["PYTHONUNBUFFERED"] == "1"
    assert of_rank({"PYTHONUNBUFFERED": ""})["PYTHONUNBUFFERED"] == ""


def test_each_rank_of_a_ring_has_its_own_ports() -> None:
    drawn = list(range(5000, 5008))
    files = backend_files(spec(backend=Backend.RING, connections_per_ip=2), 2, lambda count: drawn[:count])
    ((name, content),) = files.items()
    addresses = json.loads(content)
    assert len(addresses) == 4
    flat = [address for of_rank in addresses for address in of_rank]
    assert sorted(flat) == [f"127.0.0.1:{port}" for port in drawn]
    env = rank_environment(
        {}, spec(backend=Backend.RING), host=0, host_dir="/d", rank=0, epoch=2, restart_count=0
    )
    assert env["MLX_HOSTFILE"] == f"/d/{name}"


def test_a_ring_of_one_has_no_file_since_mlx_cannot_read_one() -> None:
    env = of_rank({}, rank=0, backend=Backend.RING, placement=(0,))
    assert "MLX_HOSTFILE" not in env


def test_the_device_matrix_is_the_hosts_files_or_the_soft_providers() -> None:
    rows = (((), ("rdma_en1",)), (("rdma_en2", "rdma_en3"), ()))
    hosts = tuple(HostSpec(name=f"h{i}", rdma=rdma) for i, rdma in enumerate(rows))
    files = backend_files(spec(hosts=hosts, placement=(0, 1)), 1, lambda _: [])
    assert json.loads(files["devices.json"]) == [[None, "rdma_en1"], [["rdma_en2", "rdma_en3"], None]]
    soft = json.loads(backend_files(spec(placement=(0, 0)), 1, lambda _: [])["devices.json"])
    assert soft == [[None, "soft0"], ["soft0", None]]


def test_mlx_refuses_the_file_that_is_there_for_processes_without_the_bootstrap(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    import subprocess

    directory = tmp_path_factory.mktemp("h0")
    for name, content in backend_files(spec(), 1, lambda _: []).items():
        (directory / name).write_bytes(content)
    env = rank_environment(
        os.environ, spec(), host=0, host_dir=str(directory), rank=0, epoch=1, restart_count=0
    )
    code = "import mlx.core as mx; mx.distributed.all_sum(mx.array(1))"
    run = subprocess.run([sys.executable, "-S", "-I", "-c", f"import sys; sys.path += {sys.path!r}; {code}"],
                         env=env, capture_output=True, text=True, check=False)  # fmt: skip
    assert run.returncode == 1
    assert "RuntimeError" in run.stderr
    assert "parse error" in run.stderr


def test_the_terminals_width_is_given_less_the_prefix() -> None:
    env = agent_environment({"A": "b"}, spec(placement=(0,) * 11), (100, 40))
    assert env == {"A": "b", "COLUMNS": "95", "LINES": "40"}
    assert agent_environment({}, spec(output=OutputMode.RAW), (100, 40))["COLUMNS"] == "100"
    assert agent_environment({"COLUMNS": "7"}, spec(), (100, 40))["COLUMNS"] == "7"
    assert agent_environment({}, spec(), None) == {}


def test_a_python_file_runs_under_a_python() -> None:
    assert command_line(("train.py", "-x"), None) == (sys.executable, "train.py", "-x")
    assert command_line(("train.py",), "python3.12") == ("python3.12", "train.py")
    assert command_line(("-m", "mod"), "python3.12") == ("python3.12", "-m", "mod")
    assert command_line(("./job.sh",), None) == ("./job.sh",)
