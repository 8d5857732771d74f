"""Events that one job may cause very often, told at a pace that a reader can follow."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.model.events import PROGRESS, STEP_COMPLETED
from treadle.store.views import Change

# Between two `job:progress` of one job, and two `job:step:completed` of its steps with keys.
PAUSE_S = 0.25


class Pace:
    """Keeps these events of each job apart. The newest one waits for its turn; the others are dropped.

    A move of the job drops the one that waits, too: it tells as much.
    """

    def __init__(self) -> None:
        self._told_at: dict[tuple[str, str], float] = {}
        self._held: dict[tuple[str, str], Change] = {}

    def admit(self, change: Change, now: float) -> bool:
        """Whether to tell this change now."""
        id = change.job.id if change.job else (change.gone or {}).get("id", "")
        mine = (id, change.event)
        if not _is_frequent(change):
            self._held.pop((id, PROGRESS), None)
            if change.event != STEP_COMPLETED:
                self._held.pop((id, STEP_COMPLETED), None)
            return True
        self._held.pop(mine, None)
        if now < self._told_at.get(mine, float("-inf")) + PAUSE_S:
            self._held[mine] = change
            return False
        self._told_at[mine] = now
        return True

    def due(self, now: float) -> list[Change]:
        """The held changes to tell now."""
        self._told_at = {one: at for one, at in self._told_at.items() if now < at + PAUSE_S}
        return self._take([one for one in self._held if one not in self._told_at], now)

    def all(self, now: float) -> list[Change]:
        """Every held change: a snapshot must not be followed by an event that it contains."""
        return self._take(list(self._held), now)

    def _take(self, held: Sequence[tuple[str, str]], now: float) -> list[Change]:
        self._told_at |= dict.fromkeys(held, now)
        return [self._held.pop(one) for one in held]

    def forget(self) -> None:
        self._held.clear()


def _is_frequent(change: Change) -> bool:
    return change.event == PROGRESS or (change.event == STEP_COMPLETED and change.keyed)
