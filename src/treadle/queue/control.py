"""What people do with stored jobs, topics and workers: `steering` has the judges, this the methods of `Queue`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from treadle.model.durations import Priority
from treadle.model.errors import InvalidInput, JobNotFound
from treadle.model.job import Job, to_ms
from treadle.model.template import Template
from treadle.model.topic_patterns import checked_pattern
from treadle.queue import steering
from treadle.queue.enqueueing.new_jobs import JobMaker
from treadle.queue.opening import OpenedQueue
from treadle.queue.steering import Again
from treadle.store.values import Refusal
from treadle.store.views import FOREVER

if TYPE_CHECKING:
    from treadle.model.job import JobActions


class RequeuePlan(NamedTuple):
    """What a requeue would do."""

    job: Job
    steps: list[str]
    """The steps that would run again, in their order."""


class JobControl(OpenedQueue):
    """The part of `Queue` that changes jobs."""

    async def get(self, job_id: str, *, connection: Any = None) -> Job:
        """The job with this id; JobNotFound if there is none. `connection` sees jobs that it has not committed yet."""
        session = await self._session(joined=connection is not None)
        job = (await session.store.get([job_id], connection=connection))[0]
        if job is None:
            raise JobNotFound(f"no job has the id {str(job_id)[:60]!r}", id=str(job_id)[:60])
        return self._bind(job)

    async def cancel(self, job_id: str, reason: str = "") -> Job:
        """Cancel a job: immediately if it is pending, at its next checkpoint if it is running."""
        return self._answer((await self._cancel([job_id], reason))[0])

    async def requeue(
        self,
        job_id: str,
        *,
        force: bool = False,
        mode: str | None = None,
        step: str | None = None,
        payload: Any = None,
    ) -> Job:
        """Put an ended job back with all its attempts; a completed one only with `force`.

        Of a job with steps, only what has not completed runs again; with `mode="all"` everything, with `mode="from"`
        that step and all after it. A new `payload` means `mode="all"` and brings its own keys, as in a new job; the old
        one stays in the history.
        """
        return (await self._requeue(job_id, force, mode, step, payload, dry_run=False)).job

    async def requeue_plan(
        self,
        job_id: str,
        *,
        force: bool = False,
        mode: str | None = None,
        step: str | None = None,
        payload: Any = None,
    ) -> RequeuePlan:
        """What `requeue` would do, without doing it: the unchanged job, and the steps that would run again."""
        return await self._requeue(job_id, force, mode, step, payload, dry_run=True)

    async def _requeue(
        self, job_id: str, force: bool, mode: str | None, step: str | None, payload: Any, *, dry_run: bool
    ) -> RequeuePlan:
        session = await self._session()
        disabled = await self._known.topics_where(session, _is_disabled)
        again = await self._again(job_id, force, mode, step, payload)
        runs: dict[str, Sequence[str]] = {}
        [answer] = await steering.requeue(
            session.store, [job_id], disabled=disabled, dry_run=dry_run, again=again, runs=runs
        )
        return RequeuePlan(self._answer(answer), list(runs.get(job_id, ())))

    async def _again(self, job_id: str, force: bool, mode: str | None, step: str | None, payload: Any) -> Again:
        if payload is None:
            return Again(force, mode or "unfinished", step)
        if mode not in (None, "all"):
            raise InvalidInput("mode: a new payload runs everything again; use mode all", field="mode")
        job = await self.get(job_id)
        maker = JobMaker(*self._known.chosen(await self._session(), job.topic))
        return Again(force, "all", step, maker.again(job, payload))

    async def release(self, job_id: str) -> Job:
        """Take a running job from its worker and requeue it without using up the attempt; the worker's later writes are
        refused.
        """
        return self._answer((await steering.release((await self._session()).store, [job_id]))[0])

    async def reschedule(
        self,
        job_id: str,
        *,
        run_at: datetime | None = None,
        priority: Priority | None = None,
        max_attempts: int | None = None,
    ) -> Job:
        """Change a pending job."""
        changes = steering.new_values(run_at, priority, max_attempts)
        return self._answer((await steering.reschedule((await self._session()).store, [job_id], **changes))[0])

    async def cancel_many(self, job_ids: Sequence[str], reason: str = "") -> Sequence[Exception | None]:
        """Cancel many jobs; the result has None for each success, or the reason for the refusal."""
        return steering.refusals(await self._cancel(job_ids, reason))

    async def _cancel(self, job_ids: Sequence[str], reason: str) -> steering.Answers:
        session = await self._session()
        fixed = await self._known.topics_where(session, lambda template: not template.cancel.supported)
        return await steering.cancel(session.store, job_ids, steering.checked_reason(reason), fixed)

    async def requeue_many(self, job_ids: Sequence[str], *, force: bool = False) -> Sequence[Exception | None]:
        session = await self._session()
        disabled = await self._known.topics_where(session, _is_disabled)
        return steering.refusals(await steering.requeue(session.store, job_ids, force, disabled))

    async def release_many(self, job_ids: Sequence[str]) -> Sequence[Exception | None]:
        return steering.refusals(await steering.release((await self._session()).store, job_ids))

    async def reschedule_many(
        self,
        job_ids: Sequence[str],
        *,
        run_at: datetime | None = None,
        priority: Priority | None = None,
        max_attempts: int | None = None,
    ) -> Sequence[Exception | None]:
        """Change many pending jobs; the result has None for each success, or the reason for the refusal."""
        changes = steering.new_values(run_at, priority, max_attempts)
        return steering.refusals(await steering.reschedule((await self._session()).store, job_ids, **changes))

    async def delete_many(self, job_ids: Sequence[str], *, force: bool = False) -> Sequence[Exception | None]:
        return steering.refusals(await steering.delete((await self._session()).store, job_ids, force))

    async def delete(self, job_id: str, *, force: bool = False) -> None:
        """Delete a pending, failed, cancelled or expired job; a completed one only with `force`."""
        answer = (await steering.delete((await self._session()).store, [job_id], force))[0]
        if isinstance(answer, Refusal):
            raise answer.error

    async def pause(self, topic: str, until: datetime | None = None) -> None:
        """Stop starting jobs of this topic; they can still be enqueued.

        A group such as "mail.*" is paused with the topics that come later.
        """
        when = FOREVER if until is None else to_ms(until, "until")
        await (await self._session()).store.pause(checked_pattern(topic), when)

    async def resume(self, topic: str) -> None:
        """Start its jobs again. A group must be named as it was paused; one of its topics may be resumed by itself."""
        await (await self._session()).store.pause(checked_pattern(topic), 0)

    async def drain(self, worker: str) -> bool:
        """Ask a worker to claim nothing more, finish its jobs and stop; it learns this from its next heartbeat.

        False if no live worker has this name.
        """
        return await (await self._session()).store.drain(worker)

    async def undrain(self, worker: str) -> bool:
        """Let a worker that was asked to drain go on, if it has not stopped yet; its next heartbeat tells it.

        False if no live worker has this name.
        """
        return await (await self._session()).store.drain(worker, False)

    def _answer(self, answer: Job | Refusal | None) -> Job:
        if isinstance(answer, Refusal):
            raise answer.error
        assert answer, "only a deleted job has no answer"
        return self._bind(answer)

    def _bind(self, job: Job) -> Job:
        job.queue = cast("JobActions", self)
        return job


def _is_disabled(template: Template) -> bool:
    return not template.enabled
