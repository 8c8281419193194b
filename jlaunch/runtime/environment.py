"""The environment of a rank, and the files that its variables name. Values in, values out.

A rank gets, later winning: what its agent was started with (the supervisor's environment, on its
machine), the hosts file's and ``--env``, what MLX's own launcher sets for the backend, and the job's.
Variables of an outer or earlier launcher are removed first: a forgotten ``JACCL_RANK`` would win over ours.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping

import msgspec

from jlaunch.core import contract
from jlaunch.core.contract import HostFiles
from jlaunch.core.spec import Backend, JobSpec, OutputMode

STARTUP_DIR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup")
"""Holds the ``sitecustomize`` that brings the bootstrap into every Python of the job."""

NO_BOOTSTRAP_FILE = "no-bootstrap.hostfile"
NO_NCCL_FILE = "no-nccl.hostfile"
DEVICES_FILE = "devices.json"

_OF_LAUNCHERS = frozenset(
    {
        "MLX_RANK",
        "MLX_WORLD_SIZE",
        "MLX_HOSTFILE",
        "MLX_IBV_DEVICES",
        "MLX_JACCL_COORDINATOR",
        "MLX_JACCL_RING",
        "JACCL_RANK",
        "JACCL_IBV_DEVICES",
        "JACCL_COORDINATOR",
        "JACCL_RING",
    }
)

_JACCL = (Backend.JACCL, Backend.JACCL_RING)


def agent_environment(
    base: Mapping[str, str], spec: JobSpec, terminal: tuple[int, int] | None
) -> dict[str, str]:
    """The environment of a local agent, and so of its ranks: ``base``, and the size of our terminal.

    ``terminal`` is columns and lines of the launcher's terminal, None if it has none; the ranks see only
    pipes. The prefix of each line comes off the columns, else progress bars would wrap.
    """
    env = dict(base)
    if terminal is not None:
        columns, lines = terminal
        if spec.output is OutputMode.PREFIX:
            columns -= len(f"[{spec.world_size - 1}] ")
        env.setdefault("COLUMNS", str(max(1, columns)))
        env.setdefault("LINES", str(lines))
    return env


def rank_environment(
    base: Mapping[str, str],
    spec: JobSpec,
    *,
    host: int,
    host_dir: str,
    rank: int,
    epoch: int,
    restart_count: int,
) -> dict[str, str]:
    """All variables of the process that is started as ``rank`` in ``epoch``."""
    env = {name: value for name, value in base.items() if name not in _OF_LAUNCHERS}
    env.update(spec.env)
    env.update(_backend_variables(spec, host=host, host_dir=host_dir, rank=rank, epoch=epoch))
    env["PYTHONPATH"] = _prepended(STARTUP_DIR, env.get("PYTHONPATH"))
    env.setdefault("PYTHONUNBUFFERED", "1")
    env |= {
        contract.ENV_JOB: spec.job,
        contract.ENV_RANK: str(rank),
        contract.ENV_LOCAL_RANK: str(spec.ranks_of(host).index(rank)),
        contract.ENV_WORLD_SIZE: str(spec.world_size),
        contract.ENV_EPOCH: str(epoch),
        contract.ENV_RESTART_COUNT: str(restart_count),
        contract.ENV_DIR: host_dir,
        contract.ENV_BACKEND: spec.backend.value,
        contract.ENV_DEADLINE_S: repr(spec.timeouts.deadline_s),
        contract.ENV_VERBS: spec.verbs.value,
        contract.ENV_SOFT_DIR: os.path.join(host_dir, HostFiles.soft_dir(epoch)),
    }
    return env


def backend_files(spec: JobSpec, epoch: int, draw_ports: Callable[[int], list[int]]) -> dict[str, bytes]:
    """The files that the variables of ``epoch`` name, by their names in the host directory.

    ``draw_ports`` gives free ports: fresh ones for each epoch, since the old may linger.
    """
    if spec.backend is Backend.RING:
        ports = draw_ports(spec.world_size * spec.connections_per_ip)
        per_rank = [ports[i :: spec.world_size] for i in range(spec.world_size)]
        addresses = [[f"127.0.0.1:{port}" for port in of_rank] for of_rank in per_rank]
        return {_ring_file(epoch): msgspec.json.encode(addresses)}
    if spec.backend is Backend.NCCL:
        return {NO_NCCL_FILE: _NO_NCCL}
    if spec.backend in _JACCL:
        return {NO_BOOTSTRAP_FILE: _NO_BOOTSTRAP, DEVICES_FILE: msgspec.json.encode(_device_matrix(spec))}
    return {}


def command_line(program: tuple[str, ...], python: str | None) -> tuple[str, ...]:
    """What to execute for the program that the user named.

    ``python`` (``--python``) is put in front of any program; without it a ``.py`` file runs under ours.
    """
    if python is not None:
        return (python, *program)
    return (sys.executable, *program) if program[0].endswith(".py") else program


_NO_BOOTSTRAP = (
    b"jlaunch: this job's ranks are joined by jlaunch's bootstrap, which did not run in this process\n"
    b"(python -I, -E or -S?). MLX's ring must not take this file for one of its own.\n"
)

_NO_NCCL = (
    b"jlaunch: this job's ranks are joined by MLX's nccl, which this process's MLX does not have.\n"
    b"MLX's ring, which is asked next, must not make a group of one instead.\n"
)


def _backend_variables(spec: JobSpec, *, host: int, host_dir: str, rank: int, epoch: int) -> dict[str, str]:
    """What MLX's own launcher would set, so that a program that looks at it finds it."""
    variables = {"MLX_RANK": str(rank)}
    if spec.backend in _JACCL:
        variables["MLX_IBV_DEVICES"] = os.path.join(host_dir, DEVICES_FILE)
        variables["MLX_JACCL_COORDINATOR"] = f"{_address_of_rank_0(spec)}:{spec.starting_port}"
        variables["MLX_HOSTFILE"] = os.path.join(host_dir, NO_BOOTSTRAP_FILE)
        if spec.backend is Backend.JACCL_RING:
            variables["MLX_JACCL_RING"] = "1"
    elif spec.backend is Backend.RING:
        # With one rank MLX's ring cannot parse a file; without one it makes a group of one.
        if spec.world_size > 1:
            variables["MLX_HOSTFILE"] = os.path.join(host_dir, _ring_file(epoch))
        if spec.verbose:
            variables["MLX_RING_VERBOSE"] = "1"
    elif spec.backend is Backend.NCCL:
        variables["MLX_HOSTFILE"] = os.path.join(host_dir, NO_NCCL_FILE)
        variables["NCCL_HOST_IP"] = _address_of_rank_0(spec)
        variables["NCCL_PORT"] = str(spec.starting_port)
        variables["MLX_WORLD_SIZE"] = str(spec.world_size)
        variables["CUDA_VISIBLE_DEVICES"] = str(spec.ranks_of(host).index(rank))
        if spec.verbose:
            variables["NCCL_DEBUG"] = "INFO"
    return variables


def _device_matrix(spec: JobSpec) -> list[list[object]]:
    """The whole matrix in MLX's form: per rank a row of null, a device, or a list of devices."""
    matrix: list[list[object]] = []
    for rank, host in enumerate(spec.placement):
        row = spec.hosts[host].rdma
        if row:
            matrix.append([names[0] if len(names) == 1 else list(names) or None for names in row])
        else:
            matrix.append([None if peer == rank else "soft0" for peer in range(spec.world_size)])
    return matrix


def _address_of_rank_0(spec: JobSpec) -> str:
    ips = spec.hosts[spec.placement[0]].ips
    return ips[0] if ips else "127.0.0.1"


def _ring_file(epoch: int) -> str:
    return f"ring.e{epoch}.hostfile"


def _prepended(directory: str, path: str | None) -> str:
    return f"{directory}{os.pathsep}{path}" if path else directory
