"""What a training script may call, outside of a job; and snapshots."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import mlx.core as mx
import pytest
from mlx.nn.layers.containers import Sequential
from mlx.nn.layers.linear import Linear

import jlaunch
from jlaunch.backend import errors
from jlaunch.core.contract import Collective, Reason


def test_outside_a_job_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JLAUNCH_JOB", "JLAUNCH_EPOCH", "JLAUNCH_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    jlaunch.report(step=1, loss=0.5)
    assert jlaunch.failure() is None
    assert jlaunch.epoch() == 0
    assert jlaunch.restart_count() == 0


def test_report_wants_numbers() -> None:
    with pytest.raises(TypeError, match=r"loss=…\): found array, expected a number"):
        jlaunch.report(loss=mx.array(1.0))
    with pytest.raises(TypeError, match="found str"):
        jlaunch.report(stage="warm-up")  # type: ignore[arg-type]


def test_words_are_the_contracts() -> None:
    assert [errors.REASONS[reason] for reason in Reason] == [reason.word for reason in Reason]
    assert [errors.COLLECTIVES[kind] for kind in Collective] == [kind.word for kind in Collective]


def test_errors_can_be_pickled() -> None:
    import pickle

    error = errors.PeerLost("rank 2 was killed", reasons={2: "killed"}, collective="all_sum", seq=7, epoch=3)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.ranks, copy.reasons) == (
        errors.PeerLost,
        str(error),
        (2,),
        {2: "killed"},
    )
    assert (copy.collective, copy.seq, copy.epoch, copy.waited_s) == ("all_sum", 7, 3, 0.0)


def test_restore_gives_containers_back_what_they_held() -> None:
    inner: dict[str, Any] = {"w": mx.array([1.0, 2.0]), "step": 3, "name": "adam"}
    tree: list[Any] = [inner, [mx.array(4)], (mx.array(5), 6)]
    held = jlaunch.snapshot(tree)
    inner["w"] = inner["w"] * float("nan")
    inner["new"] = 1
    del inner["name"]
    tree[1].append(7)
    tree[2] = None
    assert jlaunch.restore(held) is tree
    assert tree[0] is inner
    assert inner["w"].tolist() == [1.0, 2.0]
    assert (inner["step"], inner["name"], "new" in inner) == (3, "adam", False)
    assert [one.tolist() for one in tree[1]] == [4]
    assert tree[2][0].item() == 5
    assert tree[2][1] == 6


def test_update_in_place_does_not_reach_the_snapshot() -> None:
    w = mx.array([1.0, 2.0])
    tree = {"w": w}
    held = jlaunch.snapshot(tree)
    w += 1
    w[0] = 9
    for _ in range(2):  # a snapshot can be restored more than once
        assert jlaunch.restore(held)["w"].tolist() == [1.0, 2.0]
        tree["w"] += 5


def test_snapshot_holds_references_only() -> None:
    w = mx.zeros((1 << 20,))
    mx.eval(w)
    before = mx.get_active_memory()
    held = jlaunch.snapshot([w])
    assert mx.get_active_memory() == before
    assert jlaunch.restore(held)[0].shape == (1 << 20,)


def test_snapshot_of_a_model() -> None:
    model = Sequential(Linear(2, 3), Linear(3, 1))  # type: ignore[no-untyped-call]
    layer = model.layers[0]
    before = layer.weight.tolist()
    held = jlaunch.snapshot(model)
    model.update({"layers": [{"weight": layer.weight * 0}]})
    assert layer.weight.tolist() != before
    assert jlaunch.restore(held) is model
    assert model.layers[0] is layer
    assert layer.weight.tolist() == before


def test_named_tuples_stay_named() -> None:
    Pair = namedtuple("Pair", ["left", "right"])  # noqa: PYI024 - what a program may use
    tree = [Pair(mx.array(1), mx.array(2))]
    held = jlaunch.snapshot(tree)
    tree[0] = Pair(mx.array(3), mx.array(4))
    assert jlaunch.restore(held)[0].right.item() == 2
