"""What the pages of the dashboard ask, so that they know no store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from treadle.insights import failures, family, overview, search
from treadle.insights.failures import FailureGroup
from treadle.insights.family import Family
from treadle.insights.lists import MAX_LIMIT, listing
from treadle.insights.overview import Now
from treadle.insights.retention import RetentionEffect, effect_of
from treadle.insights.search import FoundJobs, JobSearch
from treadle.insights.stats import QueueStats
from treadle.insights.workers import live_workers
from treadle.model.job import EPOCH, Job, from_ms
from treadle.model.status import Status
from treadle.policy.output import ChannelState
from treadle.policy.retention import Rules
from treadle.policy.schedule import KIND as SCHEDULE
from treadle.store.protocol import Store
from treadle.store.views import AppliedMigration, History, LiveWorker, OutputPage, StepPage, Wait

MOST_WAITS = 10_000
"""How many waiting jobs are looked at."""


class Insights:
    """Reads the state of one queue."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def time(self) -> datetime:
        """The database's clock."""
        return from_ms(await self._store.now()) or EPOCH

    async def now(self) -> Now:
        return await overview.now(self._store)

    async def workers(self) -> Sequence[LiveWorker]:
        return await live_workers(self._store)

    # -- jobs ----------------------------------------------------------------------------------

    async def jobs(self, ids: Sequence[str]) -> Sequence[Job | None]:
        """These jobs, in this order; None for a deleted one."""
        return await self._store.get(ids) if ids else []

    async def family(self, job: Job) -> Family:
        """Its parents and its children."""
        return await family.family(self._store, job)

    async def channels(self, id: str) -> Mapping[str, ChannelState]:
        """What the job has emitted to."""
        state = (await self._store.output_states([id])).get(id)
        return state.channels if state else {}

    async def output(self, id: str, channel: str, after: int) -> OutputPage | None:
        return await self._store.output(id, channel, after)

    async def running(self, most: int = MAX_LIMIT) -> Sequence[Job]:
        return await self._store.list(listing(None, Status.PROCESSING, None, None, most, 0))

    async def find(self, wanted: JobSearch, limit: int, offset: int) -> FoundJobs:
        return await search.find_jobs(self._store, wanted, limit, offset)

    async def find_ids(self, wanted: JobSearch, limit: int) -> Sequence[str]:
        """The first ids only; a list of jobs costs more."""
        return await search.find_ids(self._store, wanted, limit)

    async def count(self, wanted: JobSearch) -> dict[str, int | None]:
        """Matches by status, and all of them under ""; None if counting took too long."""
        return await search.count_jobs(self._store, wanted)

    async def total(self, topic: str | None = None) -> int:
        """How many jobs there are, from the roll-ups."""
        return sum((await self._store.stats(topic)).counts.values())

    async def step(
        self, job_id: str, name: str, offset: int, limit: int, most_bytes: int, *, failing_first: bool = False
    ) -> StepPage | None:
        """Runs of a step, with results up to this size."""
        return await self._store.steps(job_id, name, offset, limit, most_bytes, failing_first=failing_first)

    async def waits(self) -> Sequence[Wait]:
        """Steps that wait for an answer, by topic and step, the longest wait first."""
        return await self._store.waits(MOST_WAITS)

    # -- what has ended ------------------------------------------------------------------------

    async def ended(self, since: datetime | None = None) -> QueueStats:
        return await overview.ended(self._store, since)

    async def history(self, since: datetime, step_minutes: int) -> History:
        return await overview.history(self._store, since, step_minutes)

    async def failure_groups(self) -> list[FailureGroup]:
        return await failures.failure_groups(self._store)

    async def effect_of(self, rules: Rules) -> RetentionEffect:
        """What retention would do now by these rules."""
        return await effect_of(self._store, rules)

    # -- schedules and the database ------------------------------------------------------------

    async def count_schedules(self, most: int) -> int:
        return len(await self._store.find_records(SCHEDULE, limit=most))

    async def applied_migrations(self) -> Sequence[AppliedMigration]:
        return await self._store.migrations()

    async def waiting_migrations(self) -> Sequence[str]:
        return await self._store.migrate(dry_run=True)
