"""MLX's hosts file: both forms read, every mistake named by file and key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jlaunch.cli.hostsfile import HostEntry, parse_hosts_file, read_hosts_file
from jlaunch.core.errors import ConfigError


def test_the_list_form() -> None:
    found = parse_hosts_file('[{"ssh": "h1", "ips": ["10.0.0.1"]}, {"ssh": "h2"}]', "f")
    assert found.hosts == (HostEntry("h1", ("10.0.0.1",)), HostEntry("h2"))
    assert found.backend is None
    assert found.envs == found.warnings == ()


def test_the_object_form_with_every_kind_of_matrix_entry() -> None:
    text = json.dumps(
        {
            "backend": "jaccl",
            "envs": ["A=1"],
            "hosts": [
                {"ssh": "a", "ips": ["1.2.3.4"], "rdma": [None, "rdma_en2", ["rdma_en3", "rdma_en4"]]},
                {"ssh": "b", "ips": [], "rdma": ["rdma_en2", None, None]},
                {"ssh": "c", "rdma": [["rdma_en3", "rdma_en4"], None, None]},
            ],
        }
    )
    found = parse_hosts_file(text, "f")
    assert found.backend == "jaccl"
    assert found.envs == ("A=1",)
    assert found.hosts[0].rdma == ((), ("rdma_en2",), ("rdma_en3", "rdma_en4"))
    assert found.hosts[1].rdma == (("rdma_en2",), (), ())


def test_unknown_keys_are_warned_about_by_name() -> None:
    found = parse_hosts_file('{"host": 1, "hosts": [{"ssh": "a", "rmda": []}]}', "mesh.json")
    assert found.warnings == (
        "mesh.json: host: unknown key, ignored (known: backend, envs, hosts)",
        "mesh.json: hosts[0].rmda: unknown key, ignored (known: ssh, ips, rdma)",
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "f: found 'Expecting value' at line 1 column 1, expected a hosts file in JSON"),
        ('[{"ssh": "a"},]', None),
        ("3", "f: found 3, expected a list of hosts, or an object with the key 'hosts'"),
        ("{}", "f: the key 'hosts' is missing, expected a list of hosts"),
        ("[]", "f: hosts: found an empty list, expected at least one host"),
        ('{"hosts": {}}', "f: hosts: found {}, expected a list of hosts"),
        ('["a"]', "f: hosts[0]: found \"a\", expected an object with the key 'ssh'"),
        ('[{"ips": []}]', "f: hosts[0].ssh is missing, expected the host's name"),
        ('[{"ssh": ""}]', 'f: hosts[0].ssh: found "", expected a string that is not empty'),
        ('[{"ssh": 7}]', "f: hosts[0].ssh: found 7, expected a string that is not empty"),
        ('[{"ssh": "a", "ips": "1.2.3.4"}]', 'f: hosts[0].ips: found "1.2.3.4", expected a list of addresses'),
        ('[{"ssh": "a", "ips": [1]}]', "f: hosts[0].ips[0]: found 1, expected a string that is not empty"),
        ('{"envs": "A=1", "hosts": [{"ssh": "a"}]}', 'f: envs: found "A=1", expected a list of K=V strings'),
        ('{"backend": 1, "hosts": [{"ssh": "a"}]}', "f: backend: found 1, expected a string"),
        ('[{"ssh": "a", "rdma": [null, "x"]}]', "f: hosts[0].rdma: found 2 entries, expected 1, one for each host"),
        ('[{"ssh": "a", "rdma": ["x"]}]', 'f: hosts[0].rdma[0]: found ["x"], expected null (the host itself)'),
        ('[{"ssh": "a", "rdma": 1}]', "f: hosts[0].rdma: found 1, expected a list of 1 entries, one for each host"),
        ('[{"ssh": "a", "rdma": [3]}]', "f: hosts[0].rdma[0]: found 3, expected null, a device name, or a list of device names"),
        ('[{"ssh": "a", "rdma": [[]]}]', "f: hosts[0].rdma[0]: found [], expected null, a device name, or a list of device names"),
        ('[{"ssh": "a", "rdma": [null, "x"]}, {"ssh": "b"}]', "f: hosts[1].rdma is missing, expected one since other hosts have it"),
        ("[" * 100_000, "f: found JSON nested too deeply, expected a hosts file"),
    ],
)  # fmt: skip
def test_mistakes_are_named(text: str, line: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_hosts_file(text, "f")
    assert "\n" not in str(caught.value)
    if line is not None:
        assert str(caught.value) == line


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "hosts.json"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        read_hosts_file(str(path))
