"""From options to a job: everything is checked here, and nobody checks it again."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jlaunch.cli.hosts import choose_hosts, is_this_machine, place_ranks
from jlaunch.cli.options import BACKENDS, NOT_YET, RunOptions
from jlaunch.cli.program import check_cwd, check_events, check_log_dir, check_program, check_python
from jlaunch.core.errors import ConfigError
from jlaunch.core.spec import Backend, HostSpec, JobSpec, OutputMode, Policy, StdinMode, Timeouts, Verbs

_OWN_NAMES = ("MLX_RANK", "MLX_HOSTFILE", "MLX_IBV_DEVICES", "MLX_JACCL_COORDINATOR", "MLX_JACCL_RING")
"""Variables that jlaunch itself sets for a rank, beside those that begin with JLAUNCH_."""

_OURS = (Backend.JACCL, Backend.JACCL_RING)
_TOLD_NOTHING = (Backend.RING, Backend.NCCL)
"""MLX's own backends: supervised as processes; their collectives read no control block."""

_FAST_SYNCH = "MLX_METAL_FAST_SYNCH"
"""MLX: fences by a shared counter on which CPU and GPU spin without a bound."""

_NCCL_PORT = 12345
"""As in ``mlx.launch``."""


@dataclass(frozen=True)
class Launch:
    """A job ready to run: its spec, and what only the supervisor's own process needs."""

    spec: JobSpec
    python: str | None
    events: str | None
    warnings: tuple[str, ...]


def build_launch(options: RunOptions, environ: Mapping[str, str]) -> Launch:
    """Check everything and build the job. ``environ`` is what the ranks inherit.

    Raises ConfigError, one line, when something is wrong; nothing has been started then.
    """
    if options.dashboard or options.web is not None:
        raise ConfigError(f"{'--dashboard' if options.dashboard else '--web'}: {NOT_YET}")
    if not options.command:
        raise ConfigError("PROGRAM: found nothing to run, expected a .py file or a command (jlaunch --help)")
    hosts_file = choose_hosts(options.hosts, options.hostfile, options.repeat_hosts)
    hosts, placement = place_ranks(hosts_file.hosts, is_this_machine)
    _refuse_remote(hosts)
    backend = _backend(options, hosts_file.backend)
    policy = _policy(options.on_peer_loss, backend)
    cwd = check_cwd(options.cwd if options.cwd is not None else os.getcwd())
    env = _environment(hosts_file.envs, options.env)
    of_ranks = {**environ, **dict(env)}
    _check_program(options, cwd, of_ranks)
    spec = JobSpec(
        job=os.urandom(6).hex(),
        program=options.command,
        hosts=hosts,
        placement=placement,
        cwd=cwd,
        env=env,
        policy=policy,
        backend=backend,
        verbs=resolve_verbs(options.verbs, hosts) if backend in _OURS else Verbs.SOFT,
        timeouts=_timeouts(options, policy),
        max_restarts=options.max_restarts,
        output=OutputMode(options.output),
        stdin=StdinMode(options.stdin),
        log_dir=check_log_dir(options.log_dir) if options.log_dir is not None else None,
        starting_port=options.starting_port
        if backend is not Backend.NCCL
        else options.nccl_port or _NCCL_PORT,
        connections_per_ip=options.connections_per_ip or 1,
        verbose=options.verbose,
    )
    events = check_events(options.events) if options.events is not None else None
    warnings = (*hosts_file.warnings, *_unused(options, backend), *_endless_waits(of_ranks, backend))
    return Launch(spec, options.python, events, warnings)


def resolve_verbs(verbs: str, hosts: Sequence[HostSpec]) -> Verbs:
    """What ``auto`` means for these hosts; never a silent fall-back. Raises ConfigError."""
    if verbs != "auto":
        return Verbs(verbs)
    if any(host.rdma for host in hosts):
        raise ConfigError(
            "--verbs auto: found a device matrix in the hosts file, which means system verbs: "
            f"{NOT_YET}; --verbs soft runs the same job without RDMA hardware"
        )
    return Verbs.SOFT


def _refuse_remote(hosts: Sequence[HostSpec]) -> None:
    remote = next((host.name for host in hosts if not host.is_local), None)
    if remote is not None:
        raise ConfigError(
            f"host {remote}: found a host other than this machine, expected this one: {NOT_YET}"
        )


def _backend(options: RunOptions, of_file: str | None) -> Backend:
    if options.backend is not None:
        return Backend(options.backend)
    if of_file is None:
        return Backend.JACCL
    known = [backend.value for backend in Backend]
    if of_file not in known:
        raise ConfigError(f"hosts file: backend: found {of_file!r}, expected {' or '.join(known)}")
    if of_file not in BACKENDS.words:
        raise ConfigError(f"hosts file: backend {of_file}: {NOT_YET} (it does {', '.join(BACKENDS.words)})")
    return Backend(of_file)


def _policy(word: str | None, backend: Backend) -> Policy:
    """The rule for a lost rank. MLX's own backends cannot be told of a loss: there the others are ended."""
    if backend not in _TOLD_NOTHING:
        return Policy(word or Policy.RAISE.value)
    policy = Policy(word or Policy.STOP.value)
    if policy not in (Policy.STOP, Policy.RESTART):
        raise ConfigError(
            f"--on-peer-loss: found {policy.value} with --backend {backend.value}, whose collectives cannot "
            "be told of a loss; expected stop or restart, or --backend jaccl"
        )
    return policy


def _timeouts(options: RunOptions, policy: Policy) -> Timeouts:
    max_pause_s = options.max_pause
    if max_pause_s is None:
        max_pause_s = math.inf if policy is Policy.WAIT else options.deadline
    return Timeouts(
        deadline_s=options.deadline,
        max_pause_s=max_pause_s,
        straggler_timeout_s=options.straggler_timeout,
        host_timeout_s=options.host_timeout,
        restart_backoff_s=options.restart_backoff,
        grace_s=options.grace,
        start_timeout_s=options.start_timeout,
        lease_s=options.lease,
    )


def _environment(of_file: Sequence[str], of_flags: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The variables of the ranks, in MLX's order: hosts file, then flags; the later wins."""
    env: dict[str, str] = {}
    for source, pairs in (("hosts file: envs", of_file), ("--env", of_flags)):
        for pair in pairs:
            name, value = _variable(source, pair)
            env[name] = value
    return tuple(env.items())


def _variable(source: str, pair: str) -> tuple[str, str]:
    """Split ``K=V``; a name alone means an empty value, as in ``mlx.launch``."""
    name, _, value = pair.partition("=")
    if not (name.isascii() and name.replace("_", "a").isalnum()) or name[0].isdigit() or "\0" in value:
        raise ConfigError(f"{source} {pair!r}: found a name that is no variable's, expected K=V")
    if name.startswith("JLAUNCH_") or name in _OWN_NAMES:
        raise ConfigError(f"{source} {name}: found a variable that jlaunch sets itself, expected another")
    return name, value


def _check_program(options: RunOptions, cwd: str, environ: Mapping[str, str]) -> None:
    if options.python is not None:
        check_python(options.python, cwd=cwd, environ=environ)
    check_program(options.command, cwd=cwd, has_python=options.python is not None, environ=environ)


def _unused(options: RunOptions, backend: Backend) -> tuple[str, ...]:
    """Options kept from ``mlx.launch`` that only another backend reads: said, not silently dropped."""
    given = {
        "--connections-per-ip": (options.connections_per_ip is not None, "ring"),
        "--nccl-port": (options.nccl_port is not None, "nccl"),
        "--mpi-arg": (bool(options.mpi_arg), "mpi"),
    }
    return tuple(
        f"{flag} is read by the {reader} backend only"
        for flag, (is_given, reader) in given.items()
        if is_given and reader != backend.value
    )


def _endless_waits(environ: Mapping[str, str], backend: Backend) -> tuple[str, ...]:
    """A fast fence leaves the GPU spinning when the collective behind it never ends (ADR 20)."""
    value = environ.get(_FAST_SYNCH, "")
    if backend not in _TOLD_NOTHING or value in ("", "0"):
        return ()
    return (
        f"{_FAST_SYNCH}={value} with --backend {backend.value}: a rank that is ended while it waits "
        "for a lost one may leave its GPU spinning until a reboot; unset it, or take --backend jaccl",
    )


def default_python(options: RunOptions) -> str:
    """What ``--print-python`` prints."""
    return options.python if options.python is not None else sys.executable
