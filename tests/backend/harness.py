"""Real ranks without the launcher: a stand-in for the agent that forms the group and writes verdicts.

The ranks are processes of this Python with the environment that an agent gives them, so the bootstrap,
MLX and the backend in them are the real ones. What the stand-in leaves out is judgement: it writes the
verdicts that the test asks for, and (``raises_on_death``) the obvious one when a rank dies.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import zmq

import jlaunch
from jlaunch.backend import _control
from jlaunch.core import contract
from jlaunch.core.actions import FormGroup, OpenGroup, RefuseGroup
from jlaunch.core.contract import HostFiles, Reason, VerdictKind
from jlaunch.core.events import Loss
from jlaunch.core.messages import (
    Formed,
    FromRank,
    InitFailed,
    Join,
    Report,
    decode_from_rank,
    encode_to_rank,
)
from tests.e2e.harness import BOUND_S, Lines

PACKAGE_ROOT = Path(jlaunch.__file__).resolve().parent.parent
STARTUP_DIR = PACKAGE_ROOT / "jlaunch" / "runtime" / "startup"

EPOCH = 1
JOB = "stand-in"


class StandIn:
    """One host with ``size`` ranks that run ``program`` (Python source). Use as a context manager."""

    def __init__(
        self,
        program: str,
        *,
        size: int = 2,
        deadline_s: float = 0.05,
        lease_s: float = 1e6,
        grace_s: float = 10.0,
        backend: str = "jaccl",
        env: Mapping[str, str] | None = None,
        command: Callable[[Path], list[str]] | None = None,
        forms: bool = True,
        raises_on_death: bool = False,
    ) -> None:
        self.size = size
        self.messages: list[FromRank] = []
        self.deaths: list[int] = []
        self._forms = forms
        self._raises_on_death = raises_on_death
        self._changed = threading.Condition()
        # Paths of sockets are short: 104 bytes on macOS.
        self.dir = Path(tempfile.mkdtemp(prefix="jl", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        (self.dir / HostFiles.soft_dir(EPOCH)).mkdir(mode=0o700)
        self._host = _control.HostBlock.create(str(self.dir / HostFiles.HOST_BLOCK), lease_s, grace_s)
        self._host.beat()
        self._watch = _control.Watch(self._host)
        self._blocks = [
            _control.RankBlock.create(str(self.dir / HostFiles.rank_block(rank, EPOCH)), rank, EPOCH)
            for rank in range(size)
        ]
        for rank, block in enumerate(self._blocks):
            self._watch.add(rank, block)
        self._verdict = 0
        self._write_files()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.bind(f"ipc://{self.dir / HostFiles.RANKS_SOCKET}")
        self._stop_read, self._stop_write = os.pipe()
        self._routes: dict[int, bytes] = {}
        self._addresses: dict[int, bytes] = {}
        self._formed: set[int] = set()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        script = self.dir / "program.py"
        script.write_text(program)
        argv = command(script) if command is not None else [sys.executable, str(script)]
        self.ranks = [
            subprocess.Popen(
                argv,
                env=self._environment(rank, backend, deadline_s, env or {}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            for rank in range(size)
        ]
        self.stdout = [
            Lines(_pipe(process.stdout), f"stdout of rank {rank}") for rank, process in self._each()
        ]
        self.stderr = [
            Lines(_pipe(process.stderr), f"stderr of rank {rank}") for rank, process in self._each()
        ]

    def __enter__(self) -> StandIn:  # noqa: PYI034 (Self needs Python 3.11)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.ranks:
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        for lines in (*self.stdout, *self.stderr):
            lines.join()
        self._end_serving()
        self._watch.close()
        self._router.close(linger=0)
        self._context.term()
        os.close(self._stop_read)
        os.close(self._stop_write)
        for block in self._blocks:
            block.close()
        self._host.close()
        shutil.rmtree(self.dir)

    # ---- what a test does ------------------------------------------------------------------------

    def said(self, rank: int, key: str) -> Any:
        """Wait until ``rank`` has printed a JSON object with ``key``; its value."""

        def find(lines: list[bytes]) -> list[Any] | None:
            objects = [json.loads(line) for line in lines if line.startswith(b"{")]
            found = [one[key] for one in objects if key in one]
            return found or None

        try:
            return self.stdout[rank].wait(find, what=key)[0]
        except AssertionError as error:
            raise AssertionError(f"{error}\nstderr of rank {rank}:\n{self.errors(rank)}") from None

    def tell(self, rank: int, line: str = "go") -> None:
        """Give ``rank`` a line on its stdin."""
        stdin = self.ranks[rank].stdin
        assert stdin is not None
        stdin.write(line.encode() + b"\n")
        stdin.flush()

    def view(self, rank: int) -> _control.RankView:
        """The rank's half of its control block."""
        return self._blocks[rank].read()

    def until_waiting(self, rank: int, seq: int) -> None:
        """Wait until ``rank`` has waited past its deadline in collective ``seq``, and so has asked."""

        def asks() -> bool:
            view = self.view(rank)
            return view.question > 0 and any(wait.seq == seq for wait in view.waits)

        with self._changed:
            assert self._changed.wait_for(asks, BOUND_S), (
                f"rank {rank}: {self.view(rank)}\n{self.errors(rank)}"
            )

    def raise_in(self, rank: int, losses: Mapping[int, Reason]) -> None:
        """Verdict ``raise`` for ``rank``: these ranks are lost."""
        self._verdict += 1
        entries = [(lost, int(reason), 0, False) for lost, reason in losses.items()]
        self._blocks[rank].write_verdict(self._verdict, int(VerdictKind.RAISE), entries)

    def stop(self, rank: int) -> None:
        """Verdict ``stop`` for ``rank``."""
        self._verdict += 1
        self._blocks[rank].write_verdict(self._verdict, int(VerdictKind.STOP), [])

    def refuse(self, why: str, losses: Mapping[int, Reason] | None = None) -> None:
        """Refuse the group to every rank that has joined."""
        told = tuple(Loss(rank=rank, reason=reason) for rank, reason in (losses or {}).items())
        with self._changed:
            self._changed.wait_for(lambda: bool(self._routes), BOUND_S)
            order = RefuseGroup(host=0, epoch=EPOCH, losses=told, why=why)
            for route in self._routes.values():
                self._router.send_multipart([route, encode_to_rank(order)])

    def die(self) -> None:
        """End as an agent that was killed: its life word is marked, and nobody serves the ranks any more."""
        self._end_serving()
        self._watch.close()

    def heard(self, kind: type[Join | Formed | InitFailed | Report], rank: int | None = None) -> Any:
        """Wait for a message of ``kind`` (from ``rank``) and return its body."""

        def find() -> Any:
            bodies = [message.body for message in self.messages]
            return next(
                (body for body in bodies if isinstance(body, kind) and rank in (None, body.rank)), None
            )

        with self._changed:
            assert self._changed.wait_for(lambda: find() is not None, BOUND_S), f"no {kind.__name__} came"
            return find()

    def until_dead(self, rank: int) -> None:
        """Wait until the life word of ``rank`` is marked."""
        with self._changed:
            assert self._changed.wait_for(lambda: rank in self.deaths, BOUND_S), f"rank {rank} lives"

    def wait(self, rank: int) -> int:
        """The exit code of ``rank``, which must end by itself; all its output is there afterwards."""
        code = self.ranks[rank].wait(BOUND_S)
        self.stdout[rank].join()
        self.stderr[rank].join()
        return code

    def errors(self, rank: int) -> str:
        """What ``rank`` has written to stderr so far."""
        return b"\n".join(self.stderr[rank].all).decode(errors="replace")

    # ---- the agent's part ------------------------------------------------------------------------

    def _end_serving(self) -> None:
        os.write(self._stop_write, b"x")
        self._thread.join()

    def _each(self) -> list[tuple[int, subprocess.Popen[bytes]]]:
        return list(enumerate(self.ranks))

    def _write_files(self) -> None:
        devices = [
            [None if peer == rank else "soft0" for peer in range(self.size)] for rank in range(self.size)
        ]
        (self.dir / "devices.json").write_text(json.dumps(devices))
        (self.dir / "no-bootstrap.hostfile").write_text("not for MLX's ring\n")

    def _environment(
        self, rank: int, backend: str, deadline_s: float, extra: Mapping[str, str]
    ) -> dict[str, str]:
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("MLX_", "JLAUNCH_"))
        }
        return {
            **inherited,
            "PYTHONPATH": f"{STARTUP_DIR}{os.pathsep}{PACKAGE_ROOT}",
            "PYTHONUNBUFFERED": "1",
            "MLX_RANK": str(rank),
            "MLX_IBV_DEVICES": str(self.dir / "devices.json"),
            "MLX_HOSTFILE": str(self.dir / "no-bootstrap.hostfile"),
            contract.ENV_JOB: JOB,
            contract.ENV_RANK: str(rank),
            contract.ENV_LOCAL_RANK: str(rank),
            contract.ENV_WORLD_SIZE: str(self.size),
            contract.ENV_EPOCH: str(EPOCH),
            contract.ENV_RESTART_COUNT: "0",
            contract.ENV_DIR: str(self.dir),
            contract.ENV_BACKEND: backend,
            contract.ENV_DEADLINE_S: repr(deadline_s),
            contract.ENV_VERBS: "soft",
            contract.ENV_SOFT_DIR: str(self.dir / HostFiles.soft_dir(EPOCH)),
            **extra,
        }

    def _serve(self) -> None:
        poller = zmq.Poller()
        for source in (self._router, self._watch.fileno(), self._stop_read):
            poller.register(source, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._stop_read in ready:
                return
            with self._changed:
                if self._router in ready:
                    route, data = self._router.recv_multipart()
                    self._take(route, decode_from_rank(data))
                if self._watch.fileno() in ready:
                    died, _ = self._watch.take()
                    self._bury(died)
                self._changed.notify_all()

    def _take(self, route: bytes, message: FromRank) -> None:
        self.messages.append(message)
        body = message.body
        if isinstance(body, Join):
            self._routes[body.rank] = route
            self._addresses[body.rank] = body.address
            if self._forms and len(self._addresses) == self.size:
                everyone = tuple(self._addresses[rank] for rank in range(self.size))
                self._send_all(FormGroup(host=0, epoch=EPOCH, addresses=everyone))
        elif isinstance(body, Formed):
            self._formed.add(body.rank)
            if len(self._formed) == self.size:
                self._send_all(OpenGroup(host=0, epoch=EPOCH))

    def _bury(self, died: list[int]) -> None:
        self.deaths += died
        if died and self._raises_on_death:
            for rank in set(range(self.size)) - set(self.deaths):
                self.raise_in(rank, dict.fromkeys(self.deaths, Reason.KILLED))

    def _send_all(self, order: FormGroup | OpenGroup) -> None:
        for route in self._routes.values():
            self._router.send_multipart([route, encode_to_rank(order)])


def _pipe(stream: Any) -> Any:
    assert stream is not None
    return stream
