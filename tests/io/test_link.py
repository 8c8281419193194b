"""The links: only those with a key of the job, only in their own name, never blocking."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable, Iterator

import pytest
import zmq

from jlaunch.core.actions import OpenGroup, RenewLease
from jlaunch.core.events import AgentReady, HeartbeatArrived
from jlaunch.core.messages import Formed, Output, OutputTaken, Up, encode_from_rank, encode_up
from jlaunch.io.link import (
    BACKLOG_MESSAGES,
    AgentLink,
    KeyPair,
    LinkError,
    RanksLink,
    SupervisorLink,
    _Backlog,
    new_keys,
)

WAIT_MS = 5000
SILENCE_MS = 300


class Net:
    """A supervisor's link, and as many agents as a test wants, in one process but two contexts."""

    def __init__(self, directory: str) -> None:
        self.keys = new_keys()
        self.head = zmq.Context()
        self.far = zmq.Context()
        self.supervisor = SupervisorLink(self.head, self.keys)
        self.endpoint = self.supervisor.bind(f"{directory}/s.ipc")
        self.agents: list[AgentLink] = []
        self.got: list[Up] = []

    def agent(self, host: int, keys: KeyPair, server_public_key: bytes | None = None) -> AgentLink:
        link = AgentLink(self.far, keys, server_public_key=server_public_key or self.keys.public, host=host)
        link.socket.linger = 0
        link.connect(self.endpoint)
        self.agents.append(link)
        return link

    def turn(self, until: Callable[[], bool], timeout_ms: int = WAIT_MS) -> bool:
        """Serve the supervisor's sockets until a condition holds; False if time runs out first."""
        poller = zmq.Poller()
        poller.register(self.supervisor.socket, zmq.POLLIN)
        poller.register(self.supervisor.zap_socket, zmq.POLLIN)
        while not until():
            for agent in self.agents:
                # As the agent's loop does: wait to write only while something waits to be written.
                poller.register(agent.socket, zmq.POLLOUT if agent.has_backlog else 0)
            if not poller.poll(timeout_ms):
                return False
            for agent in self.agents:
                agent.flush()
            self.supervisor.answer_zap()
            self.got += self.supervisor.receive()
        return True

    def close(self) -> None:
        for agent in self.agents:
            agent.close()
        self.supervisor.close()
        self.far.term()
        self.head.term()


@pytest.fixture
def net() -> Iterator[Net]:
    with tempfile.TemporaryDirectory(prefix="jl-") as directory:
        net = Net(directory)
        yield net
        net.close()


def ready(host: int, link: AgentLink) -> AgentReady:
    return AgentReady(host=host, incarnation=link.incarnation, pid=1)


def test_there_and_back(net: Net) -> None:
    keys = new_keys()
    net.supervisor.admit(0, keys.public)
    agent = net.agent(0, keys)
    agent.send(ready(0, agent))
    assert net.turn(lambda: bool(net.got))
    assert net.got[0].body == ready(0, agent)
    net.supervisor.send(0, RenewLease(host=0))
    assert agent.socket.poll(WAIT_MS)
    assert [message.body for message in agent.receive()] == [RenewLease(host=0)]


def test_a_stranger_with_the_servers_key_gets_nothing_in(net: Net) -> None:
    stranger = net.agent(0, new_keys())
    stranger.send(HeartbeatArrived(host=0))
    assert not net.turn(lambda: bool(net.got), SILENCE_MS)


def test_a_wrong_server_key_gets_nothing_in(net: Net) -> None:
    keys = new_keys()
    net.supervisor.admit(0, keys.public)
    agent = net.agent(0, keys, server_public_key=new_keys().public)
    agent.send(HeartbeatArrived(host=0))
    assert not net.turn(lambda: bool(net.got), SILENCE_MS)


def test_random_bytes_do_no_harm(net: Net) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(net.endpoint.removeprefix("ipc://"))
        stranger.sendall(b"\x00\xff\xde\xad" * 64)
    test_there_and_back(net)


def test_an_agent_cannot_speak_for_another_host(net: Net) -> None:
    keys = new_keys()
    net.supervisor.admit(1, keys.public)
    agent = net.agent(1, keys)
    agent.socket.send(encode_up(0, agent.incarnation, HeartbeatArrived(host=0)))
    agent.send(HeartbeatArrived(host=1))
    assert net.turn(lambda: bool(net.got))
    assert [message.host for message in net.got] == [1]
    assert net.supervisor.refused == 1
    assert "spoke for host 0" in str(net.supervisor.first_refusal)


def test_garbage_is_counted_and_dropped(net: Net) -> None:
    keys = new_keys()
    net.supervisor.admit(0, keys.public)
    agent = net.agent(0, keys)
    agent.socket.send(b"\xc1 not a message")
    agent.send(HeartbeatArrived(host=0))
    assert net.turn(lambda: bool(net.got))
    assert len(net.got) == 1
    assert net.supervisor.refused == 1


def test_what_does_not_fit_waits_in_order(net: Net) -> None:
    keys = new_keys()
    net.supervisor.admit(0, keys.public)
    agent = net.agent(0, keys)
    agent.socket.sndhwm = 1
    count = 3000
    for i in range(count):
        agent.send(Output(rank=i, epoch=1, stream=1, data=b"x" * 1000))
    assert agent.has_backlog

    assert net.turn(lambda: len(net.got) == count)
    assert [message.body.rank for message in net.got] == list(range(count))  # type: ignore[union-attr]
    assert not agent.has_backlog


def test_nothing_overtakes_what_waits() -> None:
    taken: list[int] = []
    is_open = False

    def send(message: int) -> bool:
        if is_open:
            taken.append(message)
        return is_open

    backlog = _Backlog(send)
    backlog.put(1)
    is_open = True
    backlog.put(2)
    assert taken == []
    backlog.flush()
    assert taken == [1, 2]


def test_a_peer_that_takes_nothing_for_ever_is_an_error() -> None:
    backlog: _Backlog[int] = _Backlog(lambda _: False)
    for message in range(BACKLOG_MESSAGES):
        backlog.put(message)
    with pytest.raises(LinkError):
        backlog.put(BACKLOG_MESSAGES)


def test_sending_to_a_host_that_never_spoke_or_is_gone_is_no_error(net: Net) -> None:
    net.supervisor.send(7, RenewLease(host=7))
    keys = new_keys()
    net.supervisor.admit(0, keys.public)
    agent = net.agent(0, keys)
    agent.send(ready(0, agent))
    assert net.turn(lambda: bool(net.got))
    agent.close()
    net.agents.clear()
    net.far.term()
    net.far = zmq.Context()
    for _ in range(10):
        net.supervisor.send(0, OutputTaken(size_bytes=1))


def test_ranks_are_answered_by_their_route(net: Net) -> None:
    with tempfile.TemporaryDirectory(prefix="jl-") as directory:
        link = RanksLink(net.head)
        link.bind(f"{directory}/a.ipc")
        rank = net.far.socket(zmq.DEALER)
        rank.linger = 0
        rank.connect(f"ipc://{directory}/a.ipc")
        rank.send(b"nonsense")
        rank.send(encode_from_rank(Formed(rank=3, epoch=1)))
        assert link.socket.poll(WAIT_MS)
        ((route, message),) = [*link.receive()]
        assert message.body == Formed(rank=3, epoch=1)
        assert link.refused == 1
        assert link.send(route, OpenGroup(host=0, epoch=1))
        assert rank.poll(WAIT_MS)
        assert not link.send(b"nobody", OpenGroup(host=0, epoch=1))
        rank.close()
        link.close()


def test_the_secret_key_is_not_shown() -> None:
    keys = new_keys()
    assert keys.secret.decode() not in f"{keys!r} {keys} {[keys]}"
