"""What a training script may ask jlaunch. Outside a job these do nothing, or say that there is no job."""

from __future__ import annotations

import copy
import numbers
import os
import sys
from collections.abc import Iterator
from typing import Any, SupportsFloat

from jlaunch.backend.errors import CollectiveError
from jlaunch.core.contract import ENV_EPOCH, ENV_RESTART_COUNT


def report(**values: SupportsFloat) -> None:
    """Show where the program is: ``jlaunch.report(step=120, loss=2.31)``.

    Any names, plain numbers (a loss that is an array: ``loss.item()``). Each call also proves that this rank
    moves, so that it is never taken for stuck, however slow. It never waits: beyond ten a second, or when
    the agent is behind, only the latest numbers are sent, with a later call.

    Raises TypeError for what is not a number. Does nothing in a process that is not a rank.
    """
    for name, value in values.items():
        if not isinstance(value, numbers.Real):
            raise TypeError(
                f"jlaunch.report({name}=…): found {type(value).__name__}, expected a number "
                "(of an array: its .item())"
            )
    rank = _joined_rank()
    if rank is not None:
        rank.report({name: float(value) for name, value in values.items()})


def failure() -> CollectiveError | None:
    """Why the job's group is broken, as the exception that its collectives raise; None while it is whole.

    For threads that do not wait in a collective themselves.
    """
    rank = _joined_rank()
    found: CollectiveError | None = rank.failure() if rank is not None else None
    return found


def epoch() -> int:
    """The generation of the job's group: 1 at first, +1 each time that it forms anew. 0 outside a job."""
    return int(os.environ.get(ENV_EPOCH, "0"))


def restart_count() -> int:
    """How often this job has been restarted. 0 outside a job."""
    return int(os.environ.get(ENV_RESTART_COUNT, "0"))


class Snapshot:
    """A tree as it was: made by ``snapshot``, put back by ``restore``. Holds references, copies no data."""

    def __init__(self, tree: Any) -> None:
        self._held = _hold(tree)

    def restore(self) -> Any:
        """Give the tree's containers back what they held, in place; returns the tree."""
        return self._held.put_back()

    def arrays(self) -> list[Any]:
        """The arrays held."""
        return list(self._held.arrays())


def snapshot(tree: Any) -> Snapshot:
    """Remember a tree of arrays: a model, ``[model.state, optimizer.state]``, any nesting of containers.

    The arrays are evaluated first: what has not been computed yet cannot be gone back to. They are held by
    reference, so this costs no memory until the next step replaces them.
    """
    held = Snapshot(tree)
    core = sys.modules.get("mlx.core")
    if core is not None:
        core.eval(held.arrays())
    return held


def restore(held: Snapshot) -> Any:
    """Put a tree back as ``snapshot`` found it, in place, and return it.

    Dicts (models and optimizer states are such) and lists keep their identity, so that compiled functions
    and optimizers that refer to them see the old arrays again.
    """
    return held.restore()


class _Leaf:
    """Anything but a container."""

    def __init__(self, value: Any) -> None:
        # An in-place update (`x += y`) gives the very same array object a new value: hold a second handle.
        self._value = copy.copy(value) if _is_array(value) else value

    def put_back(self) -> Any:
        return copy.copy(self._value) if _is_array(self._value) else self._value

    def arrays(self) -> Iterator[Any]:
        if _is_array(self._value):
            yield self._value


class _Container:
    """A dict, list or tuple, and what was in it."""

    def __init__(self, container: Any, keys: list[Any], values: list[Any]) -> None:
        self._container = container
        self._keys = keys
        self._values = [_hold(value) for value in values]

    def put_back(self) -> Any:
        values = [value.put_back() for value in self._values]
        container = self._container
        if isinstance(container, dict):
            # The plain dict's own methods: a model's are about its parameters.
            dict.clear(container)
            dict.update(container, zip(self._keys, values, strict=True))
            return container
        if isinstance(container, list):
            container[:] = values
            return container
        return container._make(values) if hasattr(container, "_make") else tuple(values)

    def arrays(self) -> Iterator[Any]:
        for value in self._values:
            yield from value.arrays()


def _hold(tree: Any) -> _Leaf | _Container:
    if isinstance(tree, dict):
        return _Container(tree, list(tree.keys()), list(tree.values()))
    if isinstance(tree, list | tuple):
        return _Container(tree, [], list(tree))
    return _Leaf(tree)


def _is_array(value: Any) -> bool:
    core = sys.modules.get("mlx.core")
    return core is not None and isinstance(value, core.array)


def _joined_rank() -> Any:
    # Not imported for this: a process that has not loaded it is not a rank.
    module = sys.modules.get("jlaunch.runtime.rank")
    return module.joined_rank() if module is not None else None
