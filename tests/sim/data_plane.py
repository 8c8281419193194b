"""The simulated data plane: who has entered which collective, and who can reach whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.program import SimRank
    from tests.sim.world import World


class Group:
    """The data plane of one epoch: who has entered which collective, and who can reach whom."""

    def __init__(self, world: World, epoch: int, count: int) -> None:
        self.world = world
        self.epoch = epoch
        self.count = count
        self.ranks: list[SimRank | None] = [None] * count
        self.entered = [0] * count
        self.present = 0
        self.arrived = 0
        self.timer_at = 0.0
        self._missing: tuple[int, tuple[int, ...]] | None = None

    def enter(self, rank: SimRank, seq: int) -> None:
        """``rank`` contributes to collective ``seq``."""
        now = self.world.now
        self.entered[rank.rank] = seq
        self._missing = None
        if seq > self.present:
            self.present = seq
            self.arrived = 0
        self.arrived += 1
        for other in self.ranks:
            if other is not None and other.in_wait and other.seq == seq:
                other.progress += 1
                other.progress_at = now
        self.watch()
        if self.arrived == self.count:
            self.world.after(0.001, self.try_complete, seq)

    def watch(self) -> None:
        """Somebody waits: look when its deadline has passed."""
        if self.timer_at <= self.world.now:
            self._arm(self.world.now + self.world.timeouts.deadline_s)

    def try_complete(self, seq: int) -> None:
        """Everybody has entered; who can reach everybody is through."""
        if seq != self.present or self.arrived < self.count:
            return
        if self.world.is_data_cut:
            return
        for rank in self.ranks:
            if rank is not None:
                rank.deliver(seq)

    def waiting_for(self, rank: SimRank) -> tuple[int, ...]:
        """The ranks whose part ``rank`` has not got."""
        seq = rank.seq
        if self._missing is None or self._missing[0] != seq:
            missing = tuple(other for other, entered in enumerate(self.entered) if entered < seq)
            self._missing = (seq, missing)
        missing = self._missing[1]
        if self.world.is_data_cut:
            host = rank.host.index
            placement = self.world.spec.placement
            far = {
                other
                for other in range(self.count)
                if placement[other] != host and self.world.is_cut_between(host, placement[other])
            }
            return tuple(sorted(far.union(missing)))
        return missing

    def _arm(self, at: float) -> None:
        self.timer_at = at
        self.world.at(at, self._on_timer)

    def _on_timer(self) -> None:
        """The deadline of those who wait: the poll loop of each looks at the clock by itself."""
        now = self.world.now
        deadline_s = self.world.timeouts.deadline_s
        self.timer_at = now
        soonest = None
        for rank in self.ranks:
            if rank is not None and rank.in_wait and rank.is_alive:
                due_at = max(rank.progress_at, rank.answered_at) + deadline_s
                if due_at <= now + 1e-9:
                    rank.ask()
                    due_at = now + deadline_s
                soonest = due_at if soonest is None else min(soonest, due_at)
        if soonest is not None:
            self._arm(soonest)
