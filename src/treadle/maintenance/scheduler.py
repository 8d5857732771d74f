"""Makes the jobs of schedules when they are due.

The leader sleeps until the next schedule is due or until it hears that one was changed. Leadership is not what makes a
slot fire only once: the transaction that stores the jobs also updates the schedule's record by compare-and-set, and
each slot is a unique key. If a leader is killed before that commit, it has done nothing, and the next leader finds the
schedule still due; after the commit, the schedule is no longer due.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treadle.model.errors import InvalidInput, Refused, StoreBusy, StoreUnavailable, TreadleError, VersionConflict
from treadle.model.raised import one_line
from treadle.policy.schedule import KIND, Firing, Schedule, ScheduleSlot, fire
from treadle.queue.schedules.records import Stored, due_of, schedule_from
from treadle.store.values import Inserted, NewJob, Record, RecordWrite
from treadle.store.wakeups import LATER

if TYPE_CHECKING:
    from treadle.queue import Queue

log = logging.getLogger("treadle.maintenance")

BATCH = 100
# How long a schedule created by another process may go unnoticed if hints don't arrive.
LOOK_EVERY_MS = 10_000
# How often to check a slot that waits for earlier jobs.
HELD_MS = 1_000
# How often to try a slot with a job that needs a key locked by another transaction.
BUSY_MS = 1_000
# The minimum time between two checks caused by hints.
LEAST_PAUSE_S = 0.02
NEVER = 2**62
SKIPPED = "schedule:skipped"

Made = str | TreadleError
"""The result of a slot: a job id, or the reason why it made no job."""


@dataclass(slots=True)
class _Due:
    """A due schedule and what it does now."""

    stored: Stored
    firing: Firing
    now: int
    made: list[Made]
    jobs: list[NewJob]

    @property
    def changed(self) -> Schedule:
        return _after(self.stored.schedule, self.firing, self.made, self.now)

    @property
    def write(self) -> RecordWrite:
        """A held slot stays the next one, but must not delay other schedules."""
        waits, changed = self.firing.held and not self.firing.slots, self.changed
        return self.stored.write(changed, self.now + HELD_MS if waits else due_of(changed))


class Scheduler:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._store = queue.store
        self._changed = asyncio.Event()
        self._made = 0

    async def step(self, looked: Callable[[str, int], None] = lambda outcome, wait_ms: None) -> None:
        """Fire everything that is due, then wait until the next slot. `looked` is told in between."""
        self._changed.clear()
        self._made = 0
        unsubscribe = self._store.subscribe(self._hear)  # before the read, or a change right after it would be missed
        try:
            wait_ms = await self.fire_due()
            looked(_jobs_made(self._made), wait_ms)
            await self._wait(wait_ms / 1000)
        finally:
            unsubscribe()

    def _hear(self, hint: str) -> None:
        if hint == LATER:
            self._changed.set()

    async def _wait(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, LEAST_PAUSE_S))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds - LEAST_PAUSE_S)):
                await self._changed.wait()

    async def fire_due(self) -> int:
        """Fire all due schedules; returns the ms until the next check.

        Without schedules a look is one statement, because an idle worker may use two a second in total.
        """
        while True:
            earliest = await self._store.find_records(KIND, due_before=NEVER, limit=1)
            due = earliest[0].due if earliest else None
            if due is None:
                return LOOK_EVERY_MS
            now = await self._store.now()
            if due > now:
                return min(due - now, LOOK_EVERY_MS)
            await self._fire(await self._store.find_records(KIND, due_before=now + 1, limit=BATCH), now)

    async def _fire(self, records: Sequence[Record], now: int) -> None:
        ready = [one for record in records if (one := await self._prepared(record, now))]
        try:
            await self._save(ready)
        except StoreBusy:  # the key of one is locked, which must not stop the others
            await self._save_each(ready)
        except StoreUnavailable:
            raise
        except Exception:  # one was changed, or its job can't be stored
            await self._save_each(ready)

    async def _save_each(self, ready: Sequence[_Due]) -> None:
        for one in ready:
            with contextlib.suppress(VersionConflict):
                await self._save_or_put_off(one)

    async def _save_or_put_off(self, one: _Due) -> None:
        try:
            await self._save([one])
        except StoreBusy:
            await self._store.write_records([one.stored.write(one.stored.schedule, one.now + BUSY_MS)])
        except (StoreUnavailable, VersionConflict):
            raise
        except Exception as error:  # drivers have many errors for "this value can't be stored"
            log.exception("the jobs of schedule %s can't be stored", one.stored.schedule.id)
            one.made, one.jobs = [_not_made(error) for _ in one.made], []
            await self._save([one])

    async def _prepared(self, record: Record, now: int) -> _Due | None:
        try:
            schedule = schedule_from(record)
        except Exception as error:  # such as a time zone that this machine does not have
            log.error("schedule %s can't be read: %s", record.id, one_line(error))
            later = RecordWrite(KIND, record.id, record.key, record.body, now + LOOK_EVERY_MS, record.version)
            await self._store.write_records([later])
            return None
        firing = fire(schedule, now, await self._live_jobs(schedule))
        one = _Due(Stored(schedule, record.version), firing, now, [], [])
        for slot in firing.slots:
            await self._make(one, slot)
        return one

    async def _live_jobs(self, schedule: Schedule) -> int:
        if schedule.overlap == "allow" or not schedule.recent:
            return 0
        return sum(job is not None and not job.ended for job in await self._store.get(schedule.recent))

    async def _make(self, one: _Due, slot: ScheduleSlot) -> None:
        try:
            job = await self._queue.schedules.new_job(one.stored.schedule, slot)
        except (Refused, InvalidInput) as error:
            one.made.append(error)
        except StoreUnavailable:
            raise
        except Exception as error:  # what belongs to one topic must not stop the schedules of others
            log.exception("schedule %s can't make its job", one.stored.schedule.id)
            one.made.append(_not_made(error))
        else:
            one.made.append(job.id)
            one.jobs.append(job)

    async def _save(self, ready: Sequence[_Due]) -> None:
        """Store all jobs and all schedules in one transaction."""
        if not ready:
            return
        jobs = [job for one in ready for job in one.jobs]
        records = [one.write for one in ready]
        answers = iter(await self._store.insert(jobs, atomic=False, patient=False, records=records))
        for one in ready:
            told = {job.id: _told(job, next(answers)) for job in one.jobs}
            made = [told[each] if isinstance(each, str) else each for each in one.made]
            if made != one.made:
                await self._correct(one, made)
            self._made += sum(isinstance(each, str) for each in one.made)
            _log(one)

    async def _correct(self, one: _Due, made: list[Made]) -> None:
        """The schedule was stored as if every job had been made; correct it unless it has changed since."""
        one.made = made
        await self._store.write_records([one.write._replace(version=one.stored.version + 1)])


def _not_made(error: Exception) -> InvalidInput:
    return InvalidInput(f"the job could not be made: {one_line(error)}")


def _jobs_made(count: int) -> str:
    return f"{count:,} {'job' if count == 1 else 'jobs'} made" if count else "nothing was due"


def _told(job: NewJob, answer: Inserted | Refused) -> Made:
    if isinstance(answer, Refused):
        return answer
    return answer.existing_id or job.id


def _after(schedule: Schedule, firing: Firing, made: Sequence[Made], now: int) -> Schedule:
    """The schedule after these slots."""
    changed = schedule.now_standing(next_ms=firing.next_ms, held=firing.held)
    if firing.skipped:
        changed = changed.with_event(now, SKIPPED, _why_skipped(schedule, firing.skipped))
    for slot, each in zip(firing.slots, made, strict=True):
        if isinstance(each, str):
            changed = changed.with_job(slot.at_ms, each).now_standing(problem=None)
        else:
            changed = changed.with_event(now, SKIPPED, each.message).now_standing(problem=each.message)
    return changed


def _why_skipped(schedule: Schedule, count: int) -> str:
    slots = "1 slot" if count == 1 else f"{count:,} slots"
    return f"{slots} skipped: overlap is {schedule.overlap}, missed is {schedule.missed}"


def _log(one: _Due) -> None:
    for each in one.made:
        if isinstance(each, TreadleError):
            log.warning("schedule %s made no job: %s", one.stored.schedule.id, each.message)
    if one.firing.skipped:
        log.info("schedule %s: %s", one.stored.schedule.id, _why_skipped(one.stored.schedule, one.firing.skipped))
