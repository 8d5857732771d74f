"""A reader of the change feed, for tests that compare what it was told with what happened."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from treadle.store.protocol import Store
from treadle.store.values import Claimed, Touch
from treadle.store.views import Change
from treadle.testing.contract.suite import ContractPart
from treadle.testing.workbench import Workbench


class Watcher:
    """Polls the change feed and remembers its cursor."""

    def __init__(self, store: Store, page: int = 1000) -> None:
        self.store = store
        self.page = page
        self.cursor: Any = None
        self.seen: list[Change] = []

    async def look(self) -> list[Change]:
        """Read all new changes, page by page."""
        found: list[Change] = []
        while True:
            changes = await self.store.changes(self.cursor, self.page)
            self.cursor = changes.cursor
            found += changes.events
            assert not changes.lost
            if not changes.more:
                self.seen += found
                return found

    async def news(self) -> list[str]:
        return names(await self.look())

    async def has_told(self, name: str, times: int = 1) -> bool:
        await self.look()
        return names(self.seen).count(name) == times

    def stories(self) -> dict[str, list[str]]:
        """The event names seen for each job."""
        told: dict[str, list[str]] = defaultdict(list)
        for change in self.seen:
            told[id_of(change)].append(change.event.removeprefix("job:"))
        return told


def id_of(change: Change) -> str:
    if change.job is not None:
        return change.job.id
    assert change.gone is not None
    return str(change.gone["id"])


def names(changes: Sequence[Change]) -> list[str]:
    return [change.event.removeprefix("job:") for change in changes]


class Watched(ContractPart):
    @pytest.fixture
    async def watcher(self, bench: Workbench) -> Watcher:
        watcher = Watcher(bench.store)
        assert await watcher.look() == []
        return watcher

    async def started(self, bench: Workbench, **options: Any) -> Claimed:
        """A job with its start written."""
        job = await bench.claim_one(**options)
        await self.touch(bench, job)
        return job

    async def touch(
        self, bench: Workbench, job: Claimed, progress: int | None = None, message: str | None = None
    ) -> None:
        assert await bench.store.touch(job.lease, [Touch(job.n, job.token, 3, progress, message)]) == []
