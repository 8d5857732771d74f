"""Run jobs during the enqueue call."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from treadle.model.errors import JobFailed
from treadle.model.status import Status
from treadle.queue.enqueueing.new_jobs import JobRequest, TopicOwner, topic_of
from treadle.queue.handlers.context import Context
from treadle.queue.handlers.hooks import Moment

if TYPE_CHECKING:
    from treadle.model.job import Job
    from treadle.queue import Queue

_numbers = itertools.count(1)
CAPABILITY = "inline-"


@contextlib.contextmanager
def inline(queue: Queue) -> Iterator[None]:
    """Inside `with inline(queue):` an enqueue runs its handler before it returns, ignoring any delay.

    The returned job has completed, and so have the children that it waited for; or it waits: for a time, or for an
    answer, after which `queue.signal` runs the rest. A handler that fails raises its error. Topics without a handler in
    this process, and jobs that join a transaction by `connection=`, are only enqueued.
    """
    inlined = _Inline(queue)
    replaced = {"enqueue": inlined.enqueue, "enqueue_many": inlined.enqueue_many, "signal": inlined.signal}
    with queue.sync.on_its_loop_only():
        vars(queue).update(replaced)
        try:
            yield
        finally:
            for name in replaced:
                del vars(queue)[name]


class _Inline:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._enqueue = queue.enqueue
        self._enqueue_many = queue.enqueue_many
        self._signal = queue.signal

    async def enqueue(self, topic: str | TopicOwner, payload: Any = None, **options: Any) -> Job:
        name = topic_of(topic)
        if name not in self._queue.handlers or options.get("connection") is not None:
            return await self._enqueue(name, payload, **options)
        # Only the worker created below has this capability.
        capability = f"{CAPABILITY}{next(_numbers)}"
        timing = {"delay": 0, "run_at": None} if options.keys() & {"delay", "run_at"} else {}
        job = await self._enqueue(name, payload, **{**options, **timing, "capability": capability})
        return job if job.deduplicated else await self._run(job, capability)

    async def enqueue_many(
        self, topic: str | TopicOwner | Iterable[JobRequest], payloads: Iterable[Any] = (), **options: Any
    ) -> list[Job]:
        if isinstance(topic, str | TopicOwner):
            requests = [JobRequest(topic, payload, options) for payload in payloads]
        else:
            requests = [JobRequest(one.topic, one.payload, {**options, **(one.options or {})}) for one in topic]
        return [await self.enqueue(one.topic, one.payload, **(one.options or {})) for one in requests]

    async def signal(self, id: str, step: str, value: Any = None, **options: Any) -> Job:
        """The job goes on before this returns."""
        job = await self._signal(id, step, value, **options)
        ours = (job.capability or "").startswith(CAPABILITY)
        return await self._run(job, job.capability or "") if ours and job.status is Status.PENDING else job

    async def _run(self, job: Job, capability: str) -> Job:
        with self._noting_errors(job.id) as errors:
            ended = await self._work(job, capability)
        if errors or (ended.ended and ended.status is not Status.COMPLETED):
            raise errors[0] if errors else JobFailed(f"job {job.id} is {ended.status}", id=job.id)
        return ended

    async def _work(self, job: Job, capability: str | None) -> Job:
        """Run the job, and while it waits, the children that it waits for."""
        from treadle.worker import Worker

        able = [capability] if capability else []
        while True:
            worker = Worker(self._queue, topics=[job.topic], capabilities=able, slots=1, burst=True, maintenance=False)
            await worker.run()
            job = await self._queue.get(job.id)
            children = await self._queue.list(filter=f"parentId = '{job.id}' && status = 'pending'", limit=1000)
            if job.status is not Status.WAITING or not children:
                return job
            for child in children:
                await self._work_on_child(child)

    async def _work_on_child(self, child: Job) -> None:
        if child.topic not in self._queue.handlers:
            raise JobFailed(f"child {child.id} of {child.topic} has no handler in this process", id=child.id)
        if child.run_at > child.created_at:
            await self._queue.reschedule(child.id, run_at=child.created_at)
        await self._work(child, child.capability)

    @contextlib.contextmanager
    def _noting_errors(self, job_id: str) -> Iterator[list[BaseException]]:
        errors: list[BaseException] = []

        async def note(ctx: Context, error: BaseException) -> None:
            if ctx.job_id == job_id:
                errors.append(error)

        moments: tuple[Moment, ...] = ("on_failure", "on_retry")
        for moment in moments:
            self._queue.hooks.add(moment, note)
        try:
            yield errors
        finally:
            for moment in moments:
                self._queue.hooks.remove(moment, note)
