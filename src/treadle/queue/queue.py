"""The main class: enqueue, read, change and run jobs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast, overload

from typing_extensions import Unpack

from treadle.insights import lists, stats, timeline, why
from treadle.insights.lists import Count
from treadle.insights.stats import QueueStats
from treadle.model.durations import Duration, duration_ms
from treadle.model.errors import InvalidInput, JobNotFound, UnknownStep
from treadle.model.events import Event
from treadle.model.job import Job, checked_topic, is_job_id, to_ms
from treadle.model.status import Status
from treadle.model.template import CancelPolicy, Template
from treadle.policy.flow import PARALLEL
from treadle.queue import results, signals, templates
from treadle.queue.enqueueing.new_jobs import EnqueueOptions, JobRequest, TopicOwner, merged, topic_of
from treadle.queue.following import JobFollowing
from treadle.queue.handlers.flows import Flow, FlowHandler, FlowOptions, FlowPayloadT
from treadle.queue.handlers.hooks import AnyHook, Hooks
from treadle.queue.handlers.retention_hooks import RetentionHooks
from treadle.queue.handlers.tasks import (
    OTHER_QUEUE_METHODS,
    ArgumentsTask,
    JobDecorator,
    JobOptions,
    PayloadT,
    PayloadTask,
    ResultT,
    Task,
    make_handler,
    make_task,
    make_template,
)
from treadle.queue.listeners import Listeners
from treadle.queue.schedules.api import Schedules
from treadle.queue.schedules.from_code import checked_code, code_schedules
from treadle.queue.session import Session
from treadle.queue.slices import in_slices
from treadle.queue.templates import Templates
from treadle.queue.webhooks import Webhooks
from treadle.store.values import Graces, Inserted, NewJob
from treadle.store.views import StepPage, Topic
from treadle.telemetry import tracing

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from contextlib import AbstractAsyncContextManager

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from treadle.model.caller import Caller
    from treadle.queue.sync import SyncQueue

    Auth = Callable[[Request], Awaitable[Caller | None]]
    Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


Jobs = list[Job]  # inside the class, `list` is the method
NewJobs = list[NewJob]
Answers = Sequence[Inserted]
# So many jobs are made of rows between two turns of the loop.
READ_TOGETHER = 500
"""To an insert of all jobs or none: a refusal is raised."""


class Queue(JobFollowing):
    """A durable job queue in the database behind `url`.

    Opens automatically at first use; `async with Queue(url) as queue:` opens and closes it.
    """

    def __init__(self, url: str | None = None, *, migrate: bool = True, **options: Any) -> None:
        super().__init__(url, migrate=migrate, **options)
        self.hooks = Hooks()
        self.retention_hooks = RetentionHooks()
        self.listeners = Listeners(self._bind_for)
        self._sync: SyncQueue | None = None
        self.schedules = Schedules(self)
        self.templates = Templates(self)
        self.webhooks = Webhooks(self)

    if not TYPE_CHECKING:  # type checkers would believe that a queue has every attribute

        def __getattr__(self, name: str) -> Any:
            if name not in OTHER_QUEUE_METHODS:
                return self.__getattribute__(name)  # fails as usual
            raise AttributeError(f"a queue has no {name}; use {OTHER_QUEUE_METHODS[name]}", name=name, obj=self)

    @property
    def sync(self) -> SyncQueue:
        """The same methods, blocking."""
        from treadle.queue.sync import SyncQueue

        if self._sync is None:
            self._sync = SyncQueue(self)
        return self._sync

    # -- handlers ------------------------------------------------------------------------------

    @property
    def job(self) -> JobDecorator:
        """Register the decorated function as the handler of a topic, by default its own name."""
        return JobDecorator(self, {})

    def register(self, topic: str, handler: Callable[..., Any], **options: Unpack[JobOptions]) -> Task[..., Any, Any]:
        """Register a handler without the decorator; `options` are the decorator's."""
        if checked_topic(topic) in self.handlers:
            raise InvalidInput(
                f"topic {topic} has a handler already, {self.handlers[topic].name}; give one of them topic=…",
                field="topic",
            )
        schedules = code_schedules(options.pop("schedule", None), options.pop("timezone", None))
        self.hooks.take_options(topic, cast(dict[str, Any], options))
        made = make_handler(topic, handler, options)
        self._code_schedules[topic] = checked_code(made, schedules)
        self.handlers[topic] = made
        return make_task(self, made, handler)

    def flow(self, name: str, /, **options: Unpack[FlowOptions]) -> Flow[FlowPayloadT]:
        """A topic with steps: `@flow.step` declares them in their maker. `options` are those of a job.

        Each step's result is kept, and a retry runs only what has not completed.
        """
        if checked_topic(name) in self.handlers:
            raise InvalidInput(f"topic {name} has a handler already, {self.handlers[name].name}", field="topic")
        if "process" in options:
            raise InvalidInput("process: each step has its own; use @flow.step(process=True)", field="process")
        parallel = options.pop("parallel", PARALLEL)
        schedules = code_schedules(options.pop("schedule", None), options.pop("timezone", None))
        self.hooks.take_options(name, cast(dict[str, Any], options))
        template = make_template(name, cast(JobOptions, options))
        handler = FlowHandler(template, options.get("timeout") is not None, parallel)
        self._code_schedules[name] = checked_code(handler, schedules)
        self.handlers[name] = handler
        return Flow(self, handler)

    def saved_version(self, topic: str) -> int | None:
        """The number of the template that this process's code was saved as."""
        return self._known.versions.get(topic)

    # -- hooks and middleware, in the worker's process -------------------------------------------

    def on_start(self, hook: AnyHook, /) -> AnyHook:
        """Run `hook(ctx)` before each handler; sync or async, like the other hooks."""
        return self.hooks.add("on_start", hook)

    def on_success(self, hook: AnyHook, /) -> AnyHook:
        """Run `hook(ctx, result)` once a job is stored as completed."""
        return self.hooks.add("on_success", hook)

    def on_failure(self, hook: AnyHook, /) -> AnyHook:
        """Run `hook(ctx, error)` once a job is stored as failed; `RemoteError` for handlers in processes."""
        return self.hooks.add("on_failure", hook)

    def on_retry(self, hook: AnyHook, /) -> AnyHook:
        """Run `hook(ctx, error)` once a failed attempt is stored that will be retried."""
        return self.hooks.add("on_retry", hook)

    def on_worker_start(self, hook: AnyHook, /) -> AnyHook:
        """Run `hook()` or `hook(worker)` before a worker of this process claims jobs; if it raises, the worker ends."""
        return self.hooks.add_worker_start(hook)

    def on_worker_stop(self, hook: AnyHook, /) -> AnyHook:
        """Run `hook()` or `hook(worker)` after a worker of this process has stopped."""
        return self.hooks.add_worker_stop(hook)

    def middleware(self, middleware: AnyHook, /) -> AnyHook:
        """Wrap handlers: `async def f(ctx, call): return await call()` for coroutines, `def` for functions.

        The first one registered is the outermost. It runs where the handler runs: on its loop, in its thread or in its
        process.
        """
        return self.hooks.add_middleware(middleware)

    # -- hooks of retention, in a process that has them --------------------------------------------

    def on_stale(self, topic: str | None = None) -> Callable[[AnyHook], AnyHook]:
        """Call the decorated `hook(job)` once a job of this topic, or of any, is stale.

        A worker of this program has to run: no other process marks these jobs. A job may be told twice, after a crash.
        """
        return self.retention_hooks.decorator("on_stale", topic)

    def on_delete(self, topic: str | None = None) -> Callable[[AnyHook], AnyHook]:
        """Call the decorated `hook(job)` before retention deletes a job of this topic, or of any.

        If the hook raises, the job is kept and the hook is called again later. A worker of this program has to run: no
        other process deletes these jobs. A job may be told twice, after a crash.
        """
        return self.retention_hooks.decorator("on_delete", topic)

    async def save_templates(self) -> None:
        """Save the templates of the handlers that are registered now, so that every process knows them."""
        await self._known.save(await self._session())

    # -- enqueuing -----------------------------------------------------------------------------

    @overload
    async def enqueue(self, topic: str, payload: Any = None, **options: Unpack[EnqueueOptions]) -> Job: ...
    @overload
    async def enqueue(
        self,
        topic: PayloadTask[..., PayloadT, Any, ResultT],
        payload: PayloadT | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Job[ResultT]: ...
    @overload
    async def enqueue(
        self,
        topic: ArgumentsTask[..., ..., Any, ResultT, Any],
        payload: Mapping[str, Any] | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Job[ResultT]: ...
    @overload
    async def enqueue(
        self, topic: Flow[FlowPayloadT], payload: FlowPayloadT | None = None, **options: Unpack[EnqueueOptions]
    ) -> Job: ...
    async def enqueue(self, topic: str | TopicOwner, payload: Any = None, **options: Unpack[EnqueueOptions]) -> Job:
        """Store a job; it survives a crash of every process once this has returned.

        `topic` may be the task or the flow itself. `run_at` or `delay` say when it is due, `expires_at` or `expires`
        until when it has to be started. `max_attempts` (or `max_retries`, the same number) is how many failures end it
        for good, so 1 is one run. `connection` joins the transaction that is open there: the job exists if and when it
        commits.
        """
        topic = topic_of(topic)
        connection = options.pop("connection", None)
        session = await self._session(joined=connection is not None)
        maker = await self._known.maker(session, topic, options, joined=connection is not None)
        with tracing.sending(topic) as sending:
            (new,) = self._made_here(maker.jobs([payload]), sending.traceparent)
            if connection is None:
                answer = await self._add(session, new)
            else:
                (answer,) = cast(Answers, await session.store.insert([new], connection=connection))
            if answer.existing_id is None:
                job = maker.made(new, answer.at, self)
            else:
                (job,) = await self._existing(session, [answer.existing_id], connection)
            sending.job(job.id)
        return job

    async def enqueue_many(
        self,
        topic: str | TopicOwner | Iterable[JobRequest],
        payloads: Iterable[Any] = (),
        **options: Unpack[EnqueueOptions],
    ) -> list[Job]:
        """Store many jobs, all or none: a topic, task or flow with its payloads, or a list of `JobRequest`s."""
        connection = options.pop("connection", None)
        session = await self._session(joined=connection is not None)
        if isinstance(topic, str | TopicOwner):
            maker = await self._known.maker(session, topic_of(topic), options, joined=connection is not None)
            given = list(payloads)
            try:
                jobs = maker.jobs(given)
            except InvalidInput:
                for index, payload in enumerate(given):
                    with _named(f"payloads[{index}]"):
                        maker.text(payload)
                raise
            makers = [maker] * len(jobs)
        else:
            jobs, makers = [], []
            async for index, one in in_slices(enumerate(_checked_requests(topic)), pauses=connection is None):
                if "connection" in (one.options or {}):
                    raise InvalidInput("connection: all jobs share it; give it to enqueue_many", field="connection")
                chosen = merged(options, cast(EnqueueOptions, one.options or {}))
                with _named(f"jobs[{index}]"):
                    maker = await self._known.maker(session, topic_of(one.topic), chosen, joined=connection is not None)
                    jobs += maker.jobs([one.payload])
                makers.append(maker)
        if not jobs:
            return []
        with tracing.sending(topic_of(topic) if isinstance(topic, str | TopicOwner) else None, len(jobs)) as sending:
            jobs = self._made_here(jobs, sending.traceparent)
            answers = cast(Answers, await session.store.insert(jobs, connection=connection))
            made = in_slices(zip(makers, jobs, answers, strict=True), pauses=connection is None)
            fresh = [maker.made(job, answer.at, self) async for maker, job, answer in made]
            ids = [answer.existing_id for answer in answers if answer.existing_id is not None]
            if not ids:
                return fresh
            existing = iter(await self._existing(session, ids, connection))
            return [job if one.existing_id is None else next(existing) for job, one in zip(fresh, answers, strict=True)]

    async def _new_job(self, topic: str, payload: Any, **options: Unpack[EnqueueOptions]) -> NewJob:
        """A validated job, not stored yet; `options` are those of `enqueue`."""
        maker = await self._known.maker(await self._session(), topic, options)
        return self._made_here(maker.jobs([payload]), None)[0]

    async def _new_jobs(
        self, topic: str, payloads: Sequence[Any], **options: Unpack[EnqueueOptions]
    ) -> Sequence[NewJob]:
        """The same for many payloads."""
        maker = await self._known.maker(await self._session(), topic, options)
        return maker.jobs(payloads)

    async def _prepare(self, topic: str, payload: Any, **options: Unpack[EnqueueOptions]) -> tuple[NewJob, Job]:
        """A validated job for a later transaction of the worker, and the job as it will be."""
        if options.pop("connection", None) is not None:
            raise InvalidInput(
                "connection: a job is stored with the outcome or in that transaction, not both", field="connection"
            )
        session = await self._session()
        maker = await self._known.maker(session, topic, options)
        with tracing.sending(topic) as sending:
            (new,) = self._made_here(maker.jobs([payload]), sending.traceparent)
            sending.job(new.id)
        return new, maker.made(new, await session.store.now(), self)

    async def _add(self, session: Session, job: NewJob) -> Inserted:
        return await session.intake.add(job)

    def _made_here(self, jobs: NewJobs, trace: str | None) -> NewJobs:
        """The jobs with the trace that they belong to; listeners of this process's jobs remember them."""
        if trace is not None:
            jobs = [job._replace(trace=trace) for job in jobs]
        if self.listeners.own.kept:
            self.listeners.own.made(jobs)
        return jobs

    def _bind_for(self, job: Job, for_coroutine: bool) -> Job:
        """The job of an event for a listener, which can await its methods or can't."""
        return self._bind(job) if for_coroutine else cast(Job, self.sync._bind(job))

    def _forget_templates(self) -> None:
        """Read them again before they are used next."""
        templates.forget(self._sessions.current())

    async def _existing(self, session: Session, ids: Sequence[str], connection: Any) -> Jobs:
        """The jobs that stand for duplicates."""
        found: dict[str, Job] = {}
        for begin in range(0, len(ids), READ_TOGETHER):
            some = ids[begin : begin + READ_TOGETHER]
            found |= {job.id: job for job in await session.store.get(some, connection=connection) if job}
        return [self._standing(id, found.get(id)) async for id in in_slices(ids, pauses=connection is None)]

    def _standing(self, job_id: str, job: Job | None) -> Job:
        if job is None:
            raise JobNotFound(f"job {job_id} stood for this one and was deleted just now; enqueue again", id=job_id)
        return self._bind(replace(job, deduplicated=True))

    # -- looking -------------------------------------------------------------------------------

    async def list(
        self,
        *,
        topic: str | None = None,
        status: Status | str | None = None,
        scope: str | None = None,
        scope_id: str | None = None,
        filter: str | None = None,
        limit: int = 30,
        offset: int = 0,
    ) -> list[Job]:
        """Jobs, newest first; `status` may also be "stale". At most 1,000 at a time.

        `filter` is an expression over the job's fields, as in the HTTP API: `priority > 50 && payload.userId = 123`.
        """
        listing = lists.listing(topic, status, scope, scope_id, limit, offset, lists.filtered(filter))
        return [self._bind(job) for job in await (await self._session()).store.list(listing)]

    async def count(
        self,
        *,
        topic: str | None = None,
        status: Status | str | None = None,
        scope: str | None = None,
        scope_id: str | None = None,
        filter: str | None = None,
    ) -> Count:
        """How many jobs there are, exact up to 10,000; beyond that it is 10,001, and its `capped` is true."""
        wanted = lists.listing(topic, status, scope, scope_id, 1, 0, lists.filtered(filter))
        return Count(await (await self._session()).store.count(wanted))

    async def stats(self, *, topic: str | None = None, since: datetime | None = None) -> QueueStats:
        """Counts by status, success rate and average run time; ended jobs since `since`, or all."""
        wanted = None if topic is None else checked_topic(topic)
        store = (await self._session()).store
        return stats.summarise(await store.stats(wanted, None if since is None else to_ms(since, "since")))

    async def events(self, job_id: str) -> Sequence[Event]:
        """The whole timeline of a job over all its attempts, oldest first; metadata as in JSON."""
        return await timeline.timeline((await self._session()).store, job_id)

    async def why(self, job_id: str) -> Sequence[str]:
        """Why a job is not running, in sentences; empty if nothing blocks it."""
        return await why.why((await self._session()).store, job_id)

    async def result(self, job_id: str, timeout: Duration | None = None) -> Any:
        """Wait until the job has ended and return its result; JobFailed if it did not complete."""
        limit = None if timeout is None else duration_ms(timeout, "timeout") / 1000
        job = await results.ended(self, job_id, limit)
        handler = self.handlers.get(job.topic)
        value = results.completed(job).result_value
        return handler.result(value) if handler else value

    async def template(self, topic: str) -> Template:
        """The template that a job of this topic gets now, from this process or from the last one that served it."""
        session = await self._session()
        await self._known.read(session)
        return self._known.chosen(session, checked_topic(topic)).template

    async def topics(self) -> Sequence[Topic]:
        return await (await self._session()).store.topics()

    async def signal(
        self,
        job_id: str,
        step: str,
        value: Any = None,
        *,
        error: str | None = None,
        key: str | int = "",
        answered_by: str | None = None,
    ) -> Job:
        """Answer a step that waits, or will: with a value, which may be None, or with an error.

        The first answer counts. UnknownStep if the job has no such step, StepEnded if it has its answer or is over,
        InvalidAnswer if the value does not match the type that the step asks for.
        """
        await self._session()
        return await signals.signal(self, job_id, step, value, error, key, answered_by)

    async def steps(self, job_id: str, step: str, *, offset: int = 0, limit: int = 100) -> StepPage:
        """The runs of one step with their whole results, in the order in which they began."""
        page = await (await self._session()).store.steps(job_id, step, max(offset, 0), max(min(limit, 1000), 1))
        if page is None:
            await self.get(job_id)
            raise UnknownStep(f"job {job_id} has no step {str(step)[:100]!r}", step=str(step)[:100])
        return page

    # -- working -------------------------------------------------------------------------------

    async def work(self, /, *, signals: bool = False, **options: Any) -> None:
        """Run a worker in this process until it is stopped; takes the options of `Worker` and `signals` of `run`."""
        from treadle.worker import Worker

        await self.open()
        await Worker(self, **options).run(signals=signals)

    async def run_until_empty(self) -> Jobs:
        """Run all due jobs in this process, and the jobs that they enqueue; returns the ended jobs in maker.

        Delayed jobs and waiting retries stay. More than 10,000 jobs are an error.
        """
        from treadle.worker.burst import run_until_empty

        ids = await run_until_empty(self)
        return [self._bind(job) for job in await self.store.get(ids) if job is not None]

    async def reclaim(self) -> int:
        """Reclaim jobs of expired leases without waiting for the reaper; returns how many."""
        session = await self._session()
        known = await self._known.all(session)
        graces = {topic: duration_ms(template.cancel.grace) for topic, template in known.items()}
        count, more = 0, True
        while more:
            moved, more = await session.store.reap(Graces(duration_ms(CancelPolicy().grace), graces))
            count += len(moved)
        return count

    def asgi(self, *, auth: Auth | None = None) -> ASGIApp:
        """The HTTP API and the dashboard, to mount in your application: `app.mount("/queue", queue.asgi())`.

        `auth` is an async function that takes the request and returns a `treadle.Caller` for one of your own users, or
        None to leave the request to Treadle's accounts and API keys.
        """
        from treadle.dashboard import create_app

        return create_app(self, auth=auth)

    def lifespan(self, own: Lifespan | None = None, /, *, worker: bool = False, **options: Any) -> Lifespan:
        """For `FastAPI(lifespan=queue.lifespan(worker=True))` and Starlette: open while the application runs.

        `own` is the application's own lifespan, which runs inside. `worker=True` runs the jobs in this process;
        `options` are those of `Worker`.
        """
        from treadle.integrations.asgi import lifespan

        return lifespan(self, own, worker=worker, **options)


def _checked_requests(requests: Iterable[JobRequest]) -> Iterable[JobRequest]:
    for i, one in enumerate(requests):
        if not isinstance(one, JobRequest):
            raise InvalidInput(f"jobs[{i}]: {type(one).__name__} is not a JobRequest", field="jobs")
        yield one


@contextlib.contextmanager
def _named(item: str) -> Iterator[None]:
    """A refusal says which of many it is about."""
    try:
        yield
    except InvalidInput as error:
        error.name_item(item)
        raise


__all__ = ["JobRequest", "Queue", "is_job_id"]
