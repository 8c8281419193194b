"""What all machines share: a table, one method that moves, a bounded story, timers.

Rules of this file. A state changes in ``Machine._move`` and nowhere else, and only as the machine's
table says. What the world did is never an error: whoever feeds a machine asks ``accepts`` first and
drops what does not fit. A missing key met in ``_move`` is a bug of ours: ``InvalidTransition``.
"""

from __future__ import annotations

import enum
import heapq
from collections import deque
from collections.abc import Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

from jlaunch.core.errors import InvalidTransition
from jlaunch.core.events import Event

STORY_LENGTH = 32
"""Transitions that a machine remembers: a whole life of a rank, the last epochs of a job."""

State = TypeVar("State", bound=enum.Enum)


class Move(NamedTuple):
    """One transition, as the story keeps it."""

    at: float
    event: Event
    before: enum.Enum
    after: enum.Enum

    def __str__(self) -> str:
        return f"{self.at:.3f}: {self.before.name} -> {self.after.name} on {self.event}"


class Machine(Generic[State]):
    """A state, the table of its transitions, and how it got where it is."""

    def __init__(
        self, name: str, start: State, table: Mapping[tuple[State, type[Event]], State], now: float
    ) -> None:
        self.name = name
        self._state = start
        self._since = now
        self._table = table
        self._story: deque[Move] = deque(maxlen=STORY_LENGTH)

    @property
    def state(self) -> State:
        """Where the machine is."""
        return self._state

    @property
    def since(self) -> float:
        """When it entered this state."""
        return self._since

    @property
    def story(self) -> tuple[Move, ...]:
        """The last transitions, oldest first."""
        return tuple(self._story)

    def accepts(self, event: Event) -> bool:
        """Whether the table has a row for ``event`` in the present state."""
        return (self._state, type(event)) in self._table

    def _move(self, event: Event, now: float) -> State:
        """The one place where a state changes; returns the new one."""
        before = self._state
        after = self._table.get((before, type(event)))
        if after is None:
            story = "\n  ".join(str(move) for move in self._story) or "nothing yet"
            raise InvalidTransition(f"{self.name} in {before.name} got {event}; its story:\n  {story}")
        if after is not before:
            self._state = after
            self._since = now
            self._story.append(Move(now, event, before, after))
        return after


class Timers:
    """Named moments, the earliest first. Setting a name again moves it."""

    def __init__(self) -> None:
        self._at: dict[Hashable, float] = {}
        self._heap: list[tuple[float, int, Hashable]] = []
        self._count = 0

    def set(self, name: Hashable, at: float) -> None:
        """Arm ``name`` for ``at`` (infinity: never)."""
        if self._at.get(name) == at:
            return
        if at == float("inf"):
            self.cancel(name)
            return
        self._at[name] = at
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, name))

    def cancel(self, name: Hashable) -> None:
        """Disarm ``name``, armed or not."""
        self._at.pop(name, None)

    def is_set(self, name: Hashable) -> bool:
        """Whether ``name`` is armed."""
        return name in self._at

    def clear(self) -> None:
        """Disarm all."""
        self._at.clear()
        self._heap.clear()

    def next(self) -> float | None:
        """The earliest moment; None if nothing is armed."""
        while self._heap:
            at, _, name = self._heap[0]
            if self._at.get(name) == at:
                return at
            heapq.heappop(self._heap)
        return None

    def pop_due(self, now: float) -> Hashable | None:
        """Disarm and return the earliest name whose moment has come; None if there is none."""
        at = self.next()
        if at is None or at > now:
            return None
        _, _, name = heapq.heappop(self._heap)
        del self._at[name]
        return name
