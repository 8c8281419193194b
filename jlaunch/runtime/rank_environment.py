"""What a rank's environment says about it: the other half of ``environment.py``, without its imports."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from jlaunch.core import contract
from jlaunch.core.contract import HostFiles


@dataclass(frozen=True)
class RankEnvironment:
    """This process's place in the job, as its agent wrote it."""

    rank: int
    world_size: int
    epoch: int
    restart_count: int
    host_dir: str
    backend: str
    deadline_s: float
    verbs: str
    devices_file: str

    @property
    def rank_block(self) -> str:
        """Path of this rank's control block."""
        return os.path.join(self.host_dir, HostFiles.rank_block(self.rank, self.epoch))

    @property
    def stack_pipe(self) -> str:
        """Path of the FIFO for this process's stacks."""
        return os.path.join(self.host_dir, HostFiles.stack_pipe(self.rank, self.epoch))

    @property
    def host_block(self) -> str:
        """Path of the agent's block."""
        return os.path.join(self.host_dir, HostFiles.HOST_BLOCK)

    @property
    def agent_socket(self) -> str:
        """Path of the agent's socket."""
        return os.path.join(self.host_dir, HostFiles.RANKS_SOCKET)


def read_rank_environment(environ: Mapping[str, str]) -> RankEnvironment | None:
    """The rank that ``environ`` describes; None outside a job.

    Raises RuntimeError if the variables of a job are damaged: nothing may run as a rank by guess.
    """
    if not environ.get(contract.ENV_JOB):
        return None
    try:
        return RankEnvironment(
            rank=int(environ[contract.ENV_RANK]),
            world_size=int(environ[contract.ENV_WORLD_SIZE]),
            epoch=int(environ[contract.ENV_EPOCH]),
            restart_count=int(environ[contract.ENV_RESTART_COUNT]),
            host_dir=environ[contract.ENV_DIR],
            backend=environ[contract.ENV_BACKEND],
            deadline_s=float(environ[contract.ENV_DEADLINE_S]),
            verbs=environ[contract.ENV_VERBS],
            devices_file=environ.get("MLX_IBV_DEVICES", ""),
        )
    except (KeyError, ValueError) as error:
        raise RuntimeError(
            f"{contract.ENV_JOB} is set, but the other variables of a jlaunch job are not as an agent sets "
            f"them ({error!r}): start the program with jlaunch, or unset {contract.ENV_JOB}"
        ) from error
