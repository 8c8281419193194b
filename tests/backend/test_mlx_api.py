"""MLX's distributed API works on the job's group, with real ranks (the checks are in programs/mlx_api.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backend.harness import StandIn

PROGRAM = (Path(__file__).parent / "programs" / "mlx_api.py").read_text()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_rank_finds_everything_right(size: int) -> None:
    with StandIn(PROGRAM, size=size, deadline_s=30.0, raises_on_death=True) as ranks:
        for rank in range(size):
            assert ranks.said(rank, "failed") == {}
        for rank in range(size):
            assert ranks.wait(rank) == 0
