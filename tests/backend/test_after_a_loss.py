"""After a loss was caught: whatever way a program looks at a collective, it sees an error or poison.

Never a number that could be taken for a result. Two real ranks; rank 1 is told lost in rank 0's third sum.
"""

from __future__ import annotations

import math

import pytest

from jlaunch.core.contract import Reason
from tests.backend.harness import StandIn
from tests.backend.prelude import PRELUDE

PROGRAM = (
    PRELUDE
    + """
import io
x = mx.ones((3,))
mx.eval(x)

def printed(y):
    out = io.StringIO()
    print(y, file=out)
    return [float("nan") if "nan" in out.getvalue() else out.getvalue()]

def evaluated_later(y):
    mx.async_eval(y)
    mx.eval(y)
    return y.tolist()

def synchronized(y):
    mx.async_eval(y)
    mx.synchronize(mx.default_stream(mx.cpu))
    return y.tolist()

WAYS = {
    "eval": lambda y: (mx.eval(y), y.tolist())[1],
    "item": lambda y: [y[0].item()],
    "tolist": lambda y: y.tolist(),
    "synchronize": synchronized,
    "async_eval, eval": evaluated_later,
    "print": printed,
    "memoryview": lambda y: memoryview(y).tolist(),
    "np.array": lambda y: np.array(y).tolist(),
}

def seen(way, y):
    try:
        return [repr(value) for value in WAYS[way](y)]
    except RuntimeError as error:
        return type(error).__name__

if group.rank() == 1:
    for _ in range(2):
        mx.eval(all_sum(x))
    sys.stdin.readline()
    sys.exit()

for _ in range(2):
    mx.eval(all_sum(x))
lost = all_sum(x)
behind = lost * 2
try:
    mx.eval(behind)
except jlaunch.PeerLost:
    pass
results = {
    way: {
        "the lost one": seen(way, lost),
        "what was behind it": seen(way, behind),
        "a new one": seen(way, all_sum(x)),
        "behind a new one": seen(way, all_sum(x) + 1),
    }
    for way in WAYS
}
say(results=results, sane=(mx.arange(3) + 1).tolist())
"""
)


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, object]]:
    """By way and array: the values that were seen, or the name of the error."""
    with StandIn(PROGRAM) as ranks:
        ranks.until_waiting(0, 3)
        ranks.raise_in(0, {1: Reason.KILLED})
        found: dict[str, dict[str, object]] = ranks.said(0, "results")
        assert ranks.said(0, "sane") == [1, 2, 3]
        assert ranks.wait(0) == 0
        ranks.tell(1)
        assert ranks.wait(1) == 0
    return found


WAYS = ("eval", "item", "tolist", "synchronize", "async_eval, eval", "print", "memoryview", "np.array")


@pytest.mark.parametrize("way", WAYS)
def test_an_error_or_poison_and_never_a_plausible_number(
    results: dict[str, dict[str, object]], way: str
) -> None:
    assert len(results[way]) == 4
    for what, seen in results[way].items():
        if isinstance(seen, list):
            assert seen, what
            assert all(math.isnan(float(value)) for value in seen), (way, what, seen)
        else:
            assert seen in ("PeerLost", "RuntimeError"), (way, what, seen)


def test_a_new_collective_raises_by_every_way_that_can_raise(results: dict[str, dict[str, object]]) -> None:
    """Sticky, and by its own type wherever MLX lets it through."""
    for way in WAYS:
        if way not in ("memoryview", "np.array"):
            assert results[way]["a new one"] == "PeerLost", (way, results[way])
