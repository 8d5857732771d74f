"""Retention of topics with hooks, in the process that has them, whether it leads or not.

Of several processes with the same hook one is elected, for each hook on its own. A hook is called before its job is
marked or deleted, so it may be called again after a crash, but never too late.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from treadle.maintenance.hook_calls import HookCalls
from treadle.maintenance.retention import Retention
from treadle.model.job import Job
from treadle.queue.handlers.hooks import Hook
from treadle.queue.handlers.retention_hooks import Registration, RetentionMoment, register
from treadle.store.values import EndedJob, StaleJob

if TYPE_CHECKING:
    from treadle.queue import Queue

log = logging.getLogger("treadle.maintenance")

# Calls of the hooks of one topic at a time, and how long they may take together before the topic's turn is over.
AT_ONCE = 8
TURN_S = 60.0
# A job is left alone for this long after its hook failed, and twice as long after each further time.
FIRST_PAUSE_S = 60.0
LONGEST_PAUSE_S = 6 * 3600.0
MOST_FAILURES = 10_000
# A hook that fails so often for a stale job does not keep the jobs behind it from being marked.
STALE_TRIES = 5


class Failures:
    """Jobs whose hook failed: how often, and when to try again."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], tuple[int, float]] = {}

    def add(self, moment: RetentionMoment, job: EndedJob) -> int:
        """Returns how often it has failed."""
        times = self._found.pop((moment, job.n), (0, 0.0))[0] + 1
        pause = min(FIRST_PAUSE_S * 2 ** (times - 1), LONGEST_PAUSE_S)
        self._found[moment, job.n] = times, time.monotonic() + pause
        if len(self._found) > MOST_FAILURES:
            del self._found[next(iter(self._found))]
        return times

    def forget(self, moment: RetentionMoment, job: EndedJob) -> None:
        self._found.pop((moment, job.n), None)

    def waits(self, moment: RetentionMoment, job: EndedJob) -> bool:
        found = self._found.get((moment, job.n))
        return found is not None and time.monotonic() < found[1]


class HookedRetention(Retention):
    """The part of a process with hooks."""

    def __init__(self, queue: Queue, name: str, term_ms: int, calls: HookCalls | None = None) -> None:
        super().__init__(queue.store, queue.site, queue.retention_hooks.registrations)
        self._hooks = queue.retention_hooks
        self._holder = f"{name} {secrets.token_hex(4)}"
        self._term_ms = term_ms
        self._calls = calls or HookCalls()
        self._failures = Failures()
        self._held: dict[Registration, float] = {}
        self._held_up: set[tuple[str, str]] = set()
        """Topics and statuses with a job whose hook has failed in this pass."""

    # -- elections -------------------------------------------------------------------------------

    async def tick(self) -> None:
        """Register the hooks and stay elected, or become so."""
        await register(self._store, self._hooks.registrations)
        for one in self._hooks.registrations:
            asked = time.monotonic()
            if await self._store.elect(one.office, self._holder, self._term_ms):
                self._held[one] = asked + self._term_ms / 1000
            else:
                self._held.pop(one, None)
        await asyncio.sleep(self._term_ms / 3000)

    async def resign(self) -> None:
        held, self._held = self._held, {}
        for one in held:
            await self._store.elect(one.office, self._holder, 0)

    def _does(self, moment: RetentionMoment, topic: str) -> bool:
        needed = self._registered.of(moment, topic)
        return bool(needed) and self._holds().issuperset(needed)

    def _offices(self) -> object:
        return self._registered.all, self._holds()

    def _holds(self) -> frozenset[Registration]:
        return frozenset(one for one, until in self._held.items() if time.monotonic() < until)

    # -- calls -----------------------------------------------------------------------------------

    async def _mark(self) -> int:
        self._held_up.clear()
        told = await super()._mark()
        if self._held_up:
            self._walks.clear()
        return told

    async def _tell(self, jobs: Sequence[StaleJob]) -> int:
        """Marks are in order, so a job whose hook failed holds up the later ones of its topic and status."""
        jobs = [one for one in jobs if _kind(one.job) not in self._held_up]
        passed = {job.n for job in await self._called("on_stale", [one.job for one in jobs])}
        told = []
        for one in jobs:
            if one.job.n not in passed:
                self._held_up.add(_kind(one.job))
            elif _kind(one.job) not in self._held_up:
                told.append(one)
        return await super()._tell(told)

    async def _delete(self, jobs: Sequence[EndedJob], kept_ms: int) -> int:
        passed = await self._called("on_delete", jobs)
        return await super()._delete(passed, kept_ms) if passed else 0

    async def _called(self, moment: RetentionMoment, jobs: Sequence[EndedJob]) -> list[EndedJob]:
        """The jobs whose hooks have all returned, in order; the hooks of one topic don't wait for another's."""
        due = [job for job in jobs if not self._failures.waits(moment, job)]
        found = {job.id: job for job in await self._store.get([job.id for job in due]) if job}
        topics: dict[str, list[EndedJob]] = {}
        for job in due:
            if job.id in found:
                topics.setdefault(job.topic, []).append(job)
        turns = (self._turn(moment, topic, some, found) for topic, some in topics.items())
        passed = set().union(*await asyncio.gather(*turns))
        return [job for job in due if job.n in passed]

    async def _turn(
        self, moment: RetentionMoment, topic: str, jobs: Sequence[EndedJob], found: dict[str, Job]
    ) -> set[int]:
        hooks, until = self._hooks.of(moment, topic), time.monotonic() + TURN_S
        waiting, passed = iter(jobs), set()

        async def call_them() -> None:
            for job in waiting:
                if time.monotonic() >= until or not self._does(moment, topic):
                    return
                if await self._call_all(moment, hooks, job, found[job.id]):
                    passed.add(job.n)

        await asyncio.gather(*(call_them() for _ in range(AT_ONCE)))
        return passed

    async def _call_all(self, moment: RetentionMoment, hooks: Sequence[Hook], job: EndedJob, shown: Job) -> bool:
        for hook in hooks:
            error = await self._calls.call(hook, shown)
            if error is None:
                continue
            times = self._failures.add(moment, job)
            log.warning(
                "the %s hook of %s failed for job %s: %s: %s", moment, job.topic, job.id, type(error).__name__, error
            )
            if moment == "on_delete" or times < STALE_TRIES:
                return False
            log.error("the on_stale hook of %s failed %d times for job %s; it is marked", job.topic, times, job.id)
        self._failures.forget(moment, job)
        return True


def _kind(job: EndedJob) -> tuple[str, str]:
    return job.topic, job.status
