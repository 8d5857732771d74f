"""Marks jobs as stale and later deletes them, in small batches with separate commits.

A pass of the leader leaves out the jobs of topics with hooks: `hooked_retention` does them, where the hooks are.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

from treadle.maintenance.ended_walk import EndedWalk
from treadle.policy.retention import Rules, classes
from treadle.queue.handlers.retention_hooks import Registered, Registration, RetentionMoment, registered
from treadle.queue.runtime_settings import RuntimeSettings
from treadle.store.protocol import Store
from treadle.store.values import FIRST_ENDED, EndedAt, EndedJob, StaleJob

log = logging.getLogger("treadle.maintenance")

BATCH = 1000
# The pause between two batches, and how many times as long as a batch it is at least: a drain beside it keeps its rate,
# and where the database is busy, retention takes longer.
PAUSE_S = 0.05
REST = 4
LONGEST_REST_S = 2.0
# A job is marked late by at most this part of its age, and by this long.
MARK_WITHIN = 1 / 60
LONGEST_UNMARKED_S = 300.0
# An ending may be committed a moment after its time, and one behind a mark would never be told.
COMMITTED_MS = 2_000


Marks = Mapping[tuple[str, str], EndedAt]


class Retention:
    """The leader's part."""

    def __init__(self, store: Store, site: RuntimeSettings, own: Sequence[Registration] = ()) -> None:
        """`own`: the hooks of this program, which may not be stored yet."""
        self._store = store
        self._site = site
        self._own = own
        self._registered = Registered()
        self._walks: dict[int, EndedWalk] = {}
        self._walked_by: object = None
        self._marking = asyncio.Lock()
        self._marked_by: Rules | None = None
        self._mark_at = 0.0

    async def prune(self) -> str:
        """One pass; returns what it did, in words."""
        await self.mark()
        total = await self.delete()
        while await self._store.prune_output((await self._site.settings()).output_after_ms, BATCH):
            await asyncio.sleep(PAUSE_S)
        rules = await self._rules()
        await self._store.forget(rules.stale_after_ms + rules.delete_after_ms)
        if total:
            log.info("deleted %d jobs that ended long ago", total)
        return f"{total:,} deleted" if total else "nothing to delete"

    # -- the first stage -------------------------------------------------------------------------

    async def mark_in_time(self) -> str:
        """`mark` if a job may be overdue by now or the rules are new; else nothing, and the store is not asked."""
        if self._site.known.retention == self._marked_by and time.monotonic() < self._mark_at:
            return "nothing to mark"
        done = await self.mark()
        self._marked_by = rules = self._site.known.retention
        shortest_s = min(one.stale_after_ms for one in classes(rules)) / 1000
        self._mark_at = time.monotonic() + min(shortest_s * MARK_WITHIN, LONGEST_UNMARKED_S)
        return done

    async def mark(self) -> str:
        """Tell of every job that has become stale, once; returns how many, in words."""
        async with self._marking:
            told = await self._mark()
        return f"{told:,} stale now" if told else "nothing to mark"

    async def _mark(self) -> int:
        rules, marks, now = await self._look(), dict(await self._store.stale_marks()), await self._store.now()
        told = 0
        for after_ms, until in _limits(rules, now):
            walk = self._walks.setdefault(after_ms, EndedWalk(self._store))
            while jobs := await walk.next(until):
                began = time.monotonic()
                found = [StaleJob(job, at) for job in jobs if (at := self._untold(job, rules, marks, now)) is not None]
                if found:
                    told += await self._tell(found)
                    marks |= {(one.topic, one.status): one.place for one, _ in found}
                    await _rest(began)
        return told

    def _untold(self, job: EndedJob, rules: Rules, marks: Marks, now: int) -> int | None:
        """Since when a job is stale, if it is for this process to tell."""
        if not self._does("on_stale", job.topic) or _is_marked(job, marks):
            return None
        return rules.stale_at(job.topic, job.status, job.ended_at, now)

    async def _tell(self, jobs: Sequence[StaleJob]) -> int:
        return await self._store.mark_stale(jobs)

    # -- the second ------------------------------------------------------------------------------

    async def delete(self) -> int:
        """Delete what was kept long enough; returns how many jobs."""
        rules, marks = await self._look(), await self._store.stale_marks()
        walk, now, total = EndedWalk(self._store), await self._store.now(), 0
        while jobs := await walk.next(now - min(one.kept_ms for one in classes(rules))):
            # Read again before each batch, so that a longer retention applies in the middle of a long pass.
            rules = await self._look()
            for kept_ms, due in self._due(jobs, rules, marks, now).items():
                began = time.monotonic()
                total += await self._delete(due, kept_ms)
                await _rest(began)
        return total

    def _due(self, jobs: Sequence[EndedJob], rules: Rules, marks: Marks, now: int) -> Mapping[int, Sequence[EndedJob]]:
        """The jobs to delete, by how long they were kept."""
        found: dict[int, list[EndedJob]] = defaultdict(list)
        for job in jobs:
            kept_ms = rules.kept(job.topic, job.status)
            if job.ended_at + kept_ms <= now and self._does("on_delete", job.topic) and self._may_go(job, marks):
                found[kept_ms].append(job)
        return found

    def _may_go(self, job: EndedJob, marks: Marks) -> bool:
        """No hook is called for a job that has to stay, and one that wants to know of stale jobs is called first."""
        return job.may_go and (not self._registered.of("on_stale", job.topic) or _is_marked(job, marks))

    async def _delete(self, jobs: Sequence[EndedJob], kept_ms: int) -> int:
        return await self._store.prune(kept_ms, BATCH, [job.n for job in jobs])

    # -- whose jobs ------------------------------------------------------------------------------

    async def _look(self) -> Rules:
        rules, known = await self._rules(), await registered(self._store)
        self._registered = Registered(known.all.union(self._own))
        if self._walked_by != (rules, self._offices()):
            # Jobs that a walk has passed may be stale by other rules, or be for this process now.
            self._walked_by = rules, self._offices()
            self._walks.clear()
        return rules

    def _offices(self) -> object:
        """What decides whose jobs it does."""
        return self._registered.all

    async def _rules(self) -> Rules:
        return (await self._site.settings()).retention

    def _does(self, moment: RetentionMoment, topic: str) -> bool:
        """Whether it is for this process to mark or delete jobs of the topic."""
        return not self._registered.of(moment, topic)


async def _rest(began: float) -> None:
    await asyncio.sleep(max(PAUSE_S, min(REST * (time.monotonic() - began), LONGEST_REST_S)))


def _is_marked(job: EndedJob, marks: Marks) -> bool:
    return job.place <= marks.get((job.topic, job.status), FIRST_ENDED)


def _limits(rules: Rules, now: int) -> list[tuple[int, int]]:
    """Ages at which jobs become stale, and until when those ended that have reached it; the youngest first."""
    limits = [(one.stale_after_ms, now - max(one.stale_after_ms, COMMITTED_MS)) for one in classes(rules)]
    for until, former in rules.former:
        limits += [(one.stale_after_ms, until - one.stale_after_ms) for one in classes(former)]
    found: dict[int, int] = {}
    for after_ms, until in limits:
        found[after_ms] = max(until, found.get(after_ms, until))
    return sorted(found.items())
