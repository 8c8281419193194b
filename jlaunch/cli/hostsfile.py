"""MLX's hosts file, checked key by key.

Two forms: a list of hosts, or an object with ``hosts`` and, optionally, ``backend`` and ``envs``. A host
has ``ssh`` (its name), and optionally ``ips`` and ``rdma`` (its row of the device matrix: for each host of
the file null, a device name, or a list of device names). MLX ignores keys that it does not know; here
they are warned about, since a mistyped ``rmda`` would otherwise run without RDMA and say nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from jlaunch.core.errors import ConfigError

_TOP_KEYS: Final = ("backend", "envs", "hosts")
_HOST_KEYS: Final = ("ssh", "ips", "rdma")


@dataclass(frozen=True)
class HostEntry:
    """One host of the file. ``rdma``: device names for each host of the file; () where there is no matrix."""

    ssh: str
    ips: tuple[str, ...] = ()
    rdma: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class HostsFile:
    """A hosts file, whole and valid. ``backend`` is None where the file names none."""

    hosts: tuple[HostEntry, ...]
    backend: str | None = None
    envs: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def read_hosts_file(path: str) -> HostsFile:
    """Read and check the hosts file at ``path``.

    Raises ConfigError, one line that names the file, the key, what was found and what was expected.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise ConfigError(f"{path}: cannot read the hosts file: {reason}") from error
    return parse_hosts_file(text, path)


def parse_hosts_file(text: str, path: str) -> HostsFile:
    """Check the text of a hosts file; ``path`` is how messages call it. Raises ConfigError."""
    try:
        data: object = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path}: found {_json_error(error)}, expected a hosts file in JSON") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: found JSON nested too deeply, expected a hosts file") from error
    return _Checker(path).file(data)


class _Checker:
    """Walks the decoded JSON and complains with the path of the key."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._warnings: list[str] = []

    def file(self, data: object) -> HostsFile:
        """The whole file."""
        if isinstance(data, list):
            return HostsFile(self._hosts(data), warnings=tuple(self._warnings))
        if not isinstance(data, dict):
            raise self._wrong("", data, "a list of hosts, or an object with the key 'hosts'")
        self._warn_unknown(data, _TOP_KEYS, "")
        if "hosts" not in data:
            raise ConfigError(f"{self._path}: the key 'hosts' is missing, expected a list of hosts")
        backend = self._text(data.get("backend", ""), "backend", may_be_empty=True)
        envs = self._texts(data.get("envs", []), "envs", "K=V strings")
        return HostsFile(self._hosts(data["hosts"]), backend or None, envs, tuple(self._warnings))

    def _hosts(self, value: object) -> tuple[HostEntry, ...]:
        if not isinstance(value, list):
            raise self._wrong("hosts", value, "a list of hosts")
        if not value:
            raise ConfigError(f"{self._path}: hosts: found an empty list, expected at least one host")
        entries = tuple(self._host(item, f"hosts[{index}]", len(value)) for index, item in enumerate(value))
        with_matrix = [bool(entry.rdma) for entry in entries]
        if any(with_matrix) and not all(with_matrix):
            missing = with_matrix.index(False)
            raise ConfigError(
                f"{self._path}: hosts[{missing}].rdma is missing, expected one since other hosts have it"
            )
        for index, entry in enumerate(entries):
            if entry.rdma and entry.rdma[index]:
                raise self._wrong(
                    f"hosts[{index}].rdma[{index}]", list(entry.rdma[index]), "null (the host itself)"
                )
        return entries

    def _host(self, value: object, key: str, count: int) -> HostEntry:
        if not isinstance(value, dict):
            raise self._wrong(key, value, "an object with the key 'ssh'")
        self._warn_unknown(value, _HOST_KEYS, key)
        if "ssh" not in value:
            raise ConfigError(f"{self._path}: {key}.ssh is missing, expected the host's name")
        return HostEntry(
            ssh=self._text(value["ssh"], f"{key}.ssh"),
            ips=self._texts(value.get("ips", []), f"{key}.ips", "addresses"),
            rdma=self._row(value.get("rdma", []), f"{key}.rdma", count),
        )

    def _row(self, value: object, key: str, count: int) -> tuple[tuple[str, ...], ...]:
        if not isinstance(value, list):
            raise self._wrong(key, value, f"a list of {count} entries, one for each host")
        if not value:
            return ()
        if len(value) != count:
            raise ConfigError(
                f"{self._path}: {key}: found {len(value)} entries, expected {count}, one for each host"
            )
        return tuple(self._devices(item, f"{key}[{index}]") for index, item in enumerate(value))

    def _devices(self, value: object, key: str) -> tuple[str, ...]:
        if value is None:
            return ()
        if isinstance(value, str) and value:
            return (value,)
        if isinstance(value, list) and value:
            return self._texts(value, key, "device names")
        raise self._wrong(key, value, "null, a device name, or a list of device names")

    def _texts(self, value: object, key: str, what: str) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise self._wrong(key, value, f"a list of {what}")
        return tuple(self._text(item, f"{key}[{index}]") for index, item in enumerate(value))

    def _text(self, value: object, key: str, *, may_be_empty: bool = False) -> str:
        if not isinstance(value, str) or not (value or may_be_empty):
            raise self._wrong(key, value, "a string" if may_be_empty else "a string that is not empty")
        return value

    def _warn_unknown(self, data: dict[str, object], known: tuple[str, ...], key: str) -> None:
        for name in data:
            if name not in known:
                where = f"{key}.{name}" if key else name
                self._warnings.append(
                    f"{self._path}: {where}: unknown key, ignored (known: {', '.join(known)})"
                )

    def _wrong(self, key: str, found: object, expected: str) -> ConfigError:
        where = f"{self._path}: {key}" if key else self._path
        shown = json.dumps(found)
        if len(shown) > 60:
            shown = shown[:57] + "..."
        return ConfigError(f"{where}: found {shown}, expected {expected}")


def _json_error(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"'{error.msg}' at line {error.lineno} column {error.colno}"
    return str(error)
