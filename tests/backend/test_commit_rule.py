"""The commit rule of the README: what keeps a caught loss out of the weights, and what does not.

Two real ranks. Both take part in two steps; rank 1 is killed before the third, in which rank 0 waits.
"""

from __future__ import annotations

import pytest

from jlaunch.core.contract import Reason
from tests.backend.harness import StandIn
from tests.backend.prelude import PRELUDE

TRAINING = (
    PRELUDE
    + """
mx.random.seed(7)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = optim.SGD(learning_rate=0.1, momentum=0.9)
state = [model.state, optimizer.state]
data = mx.random.normal((32, 8))
target = mx.random.normal((32, 4))

def loss(model, data, target):
    return nn.losses.mse_loss(model(data), target)

gradients = nn.value_and_grad(model, loss)
{step}

def weights():
    flat = nn.utils.tree_flatten([model.parameters(), optimizer.state])
    return [(name, np.array(value).tobytes().hex()) for name, value in flat if isinstance(value, mx.array)]

mx.eval(state)
for _ in range(2):
    step(data, target)
    mx.eval(state)
if group.rank() == 1:
    say(weights=weights())
    sys.stdin.readline()
    sys.exit()
before = weights()
try:
    {third}
except jlaunch.PeerLost:
    {caught}
after = weights()
say(before=before, same=before == after, nan=bool(mx.isnan(model.layers[0].weight).any()),
    loss=loss(model, data, target).item())
"""
)

EAGER = """
def step(data, target):
    value, grads = gradients(model, data, target)
    grads = nn.average_gradients(grads)
    {commit}
    optimizer.update(model, grads)
"""

COMPILED = """
from functools import partial
@partial(mx.compile, inputs=state, outputs=state)
def step(data, target):
    value, grads = gradients(model, data, target)
    optimizer.update(model, nn.average_gradients(grads))
    return value
"""

PLAIN_THIRD = "step(data, target); mx.eval(state)"


@pytest.mark.parametrize(
    ("step", "third", "caught", "kept"),
    [
        (EAGER.format(commit="mx.eval(grads)"), PLAIN_THIRD, "pass", True),
        (EAGER.format(commit=""), PLAIN_THIRD, "pass", False),
        (
            EAGER.format(commit=""),
            f"held = jlaunch.snapshot(state); {PLAIN_THIRD}",
            "jlaunch.restore(held)",
            True,
        ),
        (COMPILED, PLAIN_THIRD, "pass", False),
        (COMPILED, f"held = jlaunch.snapshot(state); {PLAIN_THIRD}", "jlaunch.restore(held)", True),
    ],
    ids=[
        "eager, evaluated first",
        "eager, careless",
        "eager, snapshot",
        "compiled, careless",
        "compiled, snapshot",
    ],
)
def test_commit_rule(step: str, third: str, caught: str, kept: bool) -> None:
    with StandIn(
        TRAINING.replace("{step}", step).replace("{third}", third).replace("{caught}", caught)
    ) as ranks:
        ranks.until_waiting(0, 3)
        ranks.raise_in(0, {1: Reason.KILLED})
        assert ranks.said(0, "before") == ranks.said(1, "weights")
        assert ranks.said(0, "same") is kept
        assert ranks.said(0, "nan") is not kept
        assert ranks.wait(0) == 0
        ranks.tell(1)
        assert ranks.wait(1) == 0
