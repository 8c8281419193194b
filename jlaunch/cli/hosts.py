"""Which hosts a job runs on, and which of them is this machine."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Callable

from jlaunch.cli.hostsfile import HostEntry, HostsFile, read_hosts_file
from jlaunch.core.contract import MAX_RANKS
from jlaunch.core.errors import ConfigError
from jlaunch.core.spec import HostSpec

THIS_MACHINE = "127.0.0.1"


def choose_hosts(hosts: str | None, hostfile: str | None, repeat: int | None) -> HostsFile:
    """The hosts of the job, one entry for each rank, from ``--hosts``, ``--hostfile`` and ``-n``.

    ``-n`` repeats each host, of a list and of a hosts file alike; with a device matrix it is refused,
    since the matrix has one row for each rank. Raises ConfigError.
    """
    if hosts is not None and hostfile is not None:
        raise ConfigError("--hostfile: found --hosts as well, expected one of the two")
    path = hostfile if hostfile is not None else hosts if hosts is not None and _is_path(hosts) else None
    found = (
        read_hosts_file(path)
        if path is not None
        else _from_list(hosts if hosts is not None else THIS_MACHINE)
    )
    if repeat is not None and repeat > 1 and any(entry.rdma for entry in found.hosts):
        raise ConfigError(
            f"-n {repeat}: found a device matrix in {path}, expected no -n: it has one row for each rank"
        )
    entries = tuple(entry for entry in found.hosts for _ in range(repeat or 1))
    if len(entries) > MAX_RANKS:
        raise ConfigError(f"-n {repeat or 1}: found {len(entries)} ranks, expected at most {MAX_RANKS}")
    return HostsFile(entries, found.backend, found.envs, found.warnings)


def place_ranks(
    entries: tuple[HostEntry, ...], is_local: Callable[[str], bool]
) -> tuple[tuple[HostSpec, ...], tuple[int, ...]]:
    """The distinct hosts and, for each rank, the index of its host.

    All names of this machine are one host.
    """
    hosts: list[HostSpec] = []
    index_of: dict[str, int] = {}
    placement = []
    for entry in entries:
        local = is_local(entry.ssh)
        key = THIS_MACHINE if local else entry.ssh
        if key not in index_of:
            index_of[key] = len(hosts)
            hosts.append(HostSpec(name=entry.ssh, ips=entry.ips, rdma=entry.rdma, is_local=local))
        placement.append(index_of[key])
    return tuple(hosts), tuple(placement)


def is_this_machine(name: str) -> bool:
    """Whether ``name`` is this machine: ``localhost``, a loopback address, its own name or own address.

    No name is looked up in DNS: that could take seconds, and a name that merely resolves to this machine
    may be meant for an SSH configuration.
    """
    lowered = name.lower()
    own_name = socket.gethostname().lower()
    short_name = own_name.split(".")[0]
    if lowered in ("localhost", own_name, short_name, f"{short_name}.local"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or address in _own_addresses()


def _own_addresses() -> set[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    import psutil  # slow to import, and needed only for an address that is not loopback

    found = set()
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family in (socket.AF_INET, socket.AF_INET6):
                found.add(ipaddress.ip_address(address.address.split("%")[0]))
    return found


def _is_path(hosts: str) -> bool:
    return "/" in hosts or hosts.endswith(".json") or os.path.isfile(hosts)


def _from_list(hosts: str) -> HostsFile:
    names = [name.strip() for name in hosts.split(",")]
    if not all(names):
        raise ConfigError(f"--hosts {hosts!r}: found an empty name, expected names separated by commas")
    bad = next((name for name in names if name.startswith("-") or any(c.isspace() for c in name)), None)
    if bad is not None:
        raise ConfigError(f"--hosts: found {bad!r}, expected the name or the address of a host")
    return HostsFile(tuple(HostEntry(name, (name,) if _is_address(name) else ()) for name in names))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
