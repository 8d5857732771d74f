"""What users call: one object for enqueuing, looking, steering and working."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast, overload

from pydantic_core import from_json, to_json

from treadle import insights, settings
from treadle.connect import make_store, shown
from treadle.errors import (
    InvalidInput,
    JobFailed,
    JobNotFound,
    Refused,
    ResultTimeout,
    SchemaMismatch,
)
from treadle.events import Event
from treadle.handler import Handler
from treadle.insights import QueueStats
from treadle.intake import Intake
from treadle.job import Job, checked_topic, is_job_id, to_ms
from treadle.lifecycle import Status
from treadle.orders import JobRequest, Order, checked_attempts
from treadle.payload import dumps
from treadle.policy import Duration, Priority, Retry, duration_ms, priority_value
from treadle.settings import Settings
from treadle.site import Site
from treadle.store.base import FOREVER, Inserted, NewJob, Refusal, Store, Topic
from treadle.store.hints import ENDED
from treadle.telemetry import tracing
from treadle.template import CancelPolicy, Concurrency, Rate, Template, plain_template

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from treadle.feed import Feed
    from treadle.sync import SyncQueue

P = ParamSpec("P")
R = TypeVar("R")

# Templates of topics that this process has no handler for are read from the store this often.
TEMPLATES_SECONDS = 5.0
BATCH = 1000


class _Session:
    """What a queue has open on one event loop."""

    def __init__(self, store: Store, site: Site) -> None:
        self.store = store
        self.site = site
        self.intake = Intake(store)
        self.templates: dict[str, Template] = {}
        self.templates_at = float("-inf")
        self.reading_templates: asyncio.Task[None] | None = None
        self.saving: asyncio.Task[None] | None = None
        self.saved = False
        self.feed: Feed | None = None


class Task(Generic[P, R]):
    """A decorated function: call it as before, or enqueue it."""

    def __init__(self, queue: Queue, handler: Handler) -> None:
        self.queue = queue
        self.handler = handler
        self.topic = handler.topic
        self.__name__ = getattr(handler.function, "__name__", handler.topic)
        self.__doc__ = handler.function.__doc__
        self.__module__ = handler.function.__module__
        self.__qualname__ = getattr(handler.function, "__qualname__", handler.topic)
        self.__wrapped__ = handler.function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return cast(R, self.handler.function(*args, **kwargs))

    async def enqueue(self, payload: Any = None, **options: Any) -> Job:
        """See `Queue.enqueue`."""
        return await self.queue.enqueue(self.topic, payload, **options)

    async def enqueue_many(self, payloads: Iterable[Any], **options: Any) -> list[Job]:
        """See `Queue.enqueue_many`."""
        return await self.queue.enqueue_many(self.topic, payloads, **options)

    def __repr__(self) -> str:
        return f"<Task {self.topic}>"


class Queue:
    """A durable job queue in the database behind `url`.

    Opens by itself at the first use; `async with Queue(url) as queue:` opens and closes it.
    """

    def __init__(self, url: str | None = None, *, migrate: bool = True, **options: Any) -> None:
        self.settings: Settings = settings.load().override({**options, "db": url})
        self.url = self.settings.db
        self.handlers: dict[str, Handler] = {}
        self._migrate = migrate
        self._sessions: dict[asyncio.AbstractEventLoop, asyncio.Task[_Session]] = {}
        self._sync: SyncQueue | None = None
        self._versions: dict[str, int] = {}
        make_store(self.url, stale_after_ms=self.settings.stale_after_ms)  # a bad URL shows here

    # -- opening and closing -------------------------------------------------------------------

    async def open(self) -> Queue:
        """Connect and bring the schema up to date; calling it again does nothing."""
        await self._session()
        return self

    async def close(self) -> None:
        """Close what this event loop has open."""
        await self._bury()
        task = self._sessions.pop(asyncio.get_running_loop(), None)
        if task is not None:
            session = await task
            if session.feed is not None:
                await session.feed.stop()
            await session.store.close()

    async def _bury(self) -> None:
        """What loops left that ended without closing: SQLite's threads (PostgreSQL's sockets close by themselves)."""
        for loop in list(self._sessions):  # a copy: other threads have loops of their own
            task = self._sessions.pop(loop, None) if loop.is_closed() else None
            if task is not None:
                with contextlib.suppress(Exception):
                    await task.result().store.close()

    async def __aenter__(self) -> Queue:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def sync(self) -> SyncQueue:
        """The same methods, blocking."""
        from treadle.sync import SyncQueue

        if self._sync is None:
            self._sync = SyncQueue(self)
        return self._sync

    @property
    def store(self) -> Store:
        """The open store of the running event loop."""
        return self._current().store

    @property
    def site(self) -> Site:
        """What operators have decided for this database."""
        return self._current().site

    @property
    def feed(self) -> Feed:
        """The events of this database, for whoever listens on the running event loop."""
        from treadle.feed import Feed

        session = self._current()
        if session.feed is None:
            session.feed = Feed(self)
        return session.feed

    def _current(self) -> _Session:
        task = self._sessions.get(asyncio.get_running_loop())
        if task is None or not task.done():
            raise InvalidInput("the queue is not open here; await queue.open() first")
        return task.result()

    def new_store(self) -> Store:
        """One more store on the same database, not opened."""
        return make_store(self.url, stale_after_ms=self.settings.stale_after_ms)

    def use(self, url: str) -> None:
        """Live in another database from now on (the command line's --db); only before the first use."""
        if self._sessions:
            raise InvalidInput("the queue is open already")
        self.settings = self.settings.override({"db": url})
        self.url = url
        self.new_store()

    async def migrate(self) -> list[str]:
        """Bring the schema up to date; the names of the migrations that were applied."""
        store = self.new_store()
        waiting: list[str] = []
        try:
            await store.open(migrate=False)
        except SchemaMismatch as mismatch:
            waiting = mismatch.data.get("missing", [])
            if not waiting:
                raise
            store = self.new_store()
            await store.open(migrate=True)
        await store.close()
        return waiting

    async def _session(self, *, joined: bool = False) -> _Session:
        """What this loop has open, the templates saved.

        `joined`: for a call inside the caller's transaction. It writes nothing anywhere else: that transaction may
        have SQLite's only write lock, and would wait for itself.
        """
        session = await self._opened()
        if joined:
            await self._read_templates(session)
        elif not session.saved:
            if session.saving is None or session.saving.done():
                session.saving = asyncio.create_task(self._save_templates(session))
            await asyncio.shield(session.saving)
        return session

    async def _opened(self) -> _Session:
        loop = asyncio.get_running_loop()
        task = self._sessions.get(loop)
        if task is None:
            task = self._sessions[loop] = loop.create_task(self._open_session())
        elif task.done() and not task.cancelled() and task.exception() is None:
            return task.result()
        try:
            return await asyncio.shield(task)
        except BaseException:
            if task.done() and self._sessions.get(loop) is task:
                del self._sessions[loop]
            raise

    async def _open_session(self) -> _Session:
        await self._bury()
        store = self.new_store()
        await store.open(self._migrate)
        site = Site(store, self.settings)
        try:
            await site.read()  # a server and a worker go on reading, a mere queue does not
        except BaseException:
            await store.close()
            raise
        return _Session(store, site)

    # -- handlers ------------------------------------------------------------------------------

    @overload
    def job(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def job(
        self,
        /,
        *,
        topic: str | None = None,
        name: str = "",
        process: bool = False,
        timeout: Duration = "10m",
        priority: Priority = "normal",
        max_attempts: int | None = None,
        retry: Retry | None = None,
        capability: str | None = None,
        idempotency_key: str | None = None,
        concurrency: Concurrency | None = None,
        rate: Rate | tuple[int, Duration] | None = None,
        dedupe_keys: Sequence[str] = (),
        repeatable: bool = True,
        enabled: bool = True,
        cancel: CancelPolicy | None = None,
        expires: Duration | None = None,
        description: str = "",
        version: int | None = None,
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def job(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Register the decorated function as the handler of a topic, by default its own name."""

        def decorate(function: Callable[..., Any]) -> Task[Any, Any]:
            chosen = dict(options)
            return self.register(chosen.pop("topic", None) or function.__name__, function, **chosen)

        return decorate if function is None else decorate(function)

    def register(self, topic: str, handler: Callable[..., Any], **options: Any) -> Task[Any, Any]:
        """Register a handler without the decorator; `options` are the decorator's."""
        made = _make_handler(checked_topic(topic), handler, options)
        self.handlers[topic] = made
        return Task(self, made)

    async def save_templates(self) -> None:
        """Save the templates of the handlers that are registered now, so that every process knows them."""
        await self._save_templates(await self._session())

    async def _save_templates(self, session: _Session) -> None:
        if self.handlers:
            await self._save_handlers(session.store)
        session.saved = True

    async def _save_handlers(self, store: Store) -> None:
        definitions = {
            topic: (to_json(handler.template.as_json()).decode(), handler.template.version)
            for topic, handler in self.handlers.items()
        }
        saved = await store.templates()
        changed = {
            topic: (text, version)
            for topic, (text, version) in definitions.items()
            if topic not in saved or saved[topic][0] != text or version not in (None, saved[topic][1])
        }
        self._versions = {topic: version for topic, (_, version) in saved.items()}
        if changed:
            self._versions |= await store.save_templates(changed)

    # -- enqueuing -----------------------------------------------------------------------------

    async def enqueue(
        self,
        topic: str,
        payload: Any = None,
        *,
        run_at: datetime | None = None,
        delay: Duration | None = None,
        priority: Priority | None = None,
        max_attempts: int | None = None,
        max_retries: int | None = None,
        idempotency_key: str | None = None,
        scope: str | None = None,
        scope_id: str | None = None,
        created_by: str | None = None,
        capability: str | None = None,
        expires_at: datetime | None = None,
        expires: Duration | None = None,
        connection: Any = None,
    ) -> Job:
        """Store a job; it survives a crash of every process once this has returned.

        `connection` joins the transaction that is open there: the job exists if and when it commits.
        """
        session = await self._session(joined=connection is not None)
        order = await self._order(
            session,
            topic,
            run_at=run_at,
            delay=delay,
            priority=priority,
            max_attempts=max_attempts,
            max_retries=max_retries,
            idempotency_key=idempotency_key,
            scope=scope,
            scope_id=scope_id,
            created_by=created_by,
            capability=capability,
            expires_at=expires_at,
            expires=expires,
        )
        with tracing.sending(topic) as sending:
            jobs = _traced(order.jobs([payload]), sending.traceparent)
            if connection is None:
                answers: list[Inserted | Refused] = [await session.intake.add(jobs[0])]
            else:
                answers = await session.store.insert(jobs, connection=connection)
            job = (await self._made(session, [order], jobs, answers, connection))[0]
            sending.job(job.id)
        return job

    async def enqueue_many(
        self,
        /,
        topic: str | Iterable[JobRequest],
        payloads: Iterable[Any] = (),
        *,
        connection: Any = None,
        **options: Any,
    ) -> list[Job]:
        """Store many jobs, all or none: a topic with its payloads, or a list of `JobRequest`s."""
        session = await self._session(joined=connection is not None)
        if isinstance(topic, str):
            order = await self._order(session, topic, **_checked_options(options))
            jobs = order.jobs(payloads)
            orders = [order] * len(jobs)
        else:
            jobs, orders = [], []
            for one in _checked_requests(topic):
                chosen = _checked_options({**options, **(one.options or {})})
                orders.append(await self._order(session, one.topic, **chosen))
                jobs += orders[-1].jobs([one.payload])
        if not jobs:
            return []
        with tracing.sending(topic if isinstance(topic, str) else None, len(jobs)) as sending:
            jobs = _traced(jobs, sending.traceparent)
            answers = await session.store.insert(jobs, connection=connection)
            return await self._made(session, orders, jobs, answers, connection)

    async def _order(self, session: _Session, topic: str, **options: Any) -> Order:
        template = await self._template(session, topic)
        return Order(template, self.handlers.get(topic), self._versions.get(topic), **options)

    async def _template(self, session: _Session, topic: str) -> Template:
        handler = self.handlers.get(checked_topic(topic))
        if handler is not None:
            return handler.template
        await self._read_templates(session)
        return session.templates.get(topic) or plain_template(topic)

    async def _read_templates(self, session: _Session) -> None:
        """Now and then; whoever comes during the first read waits for it, or would know of no policy."""
        if time.monotonic() - session.templates_at <= TEMPLATES_SECONDS:
            return
        if session.reading_templates is None or session.reading_templates.done():
            session.reading_templates = asyncio.create_task(self._read_templates_now(session))
        await asyncio.shield(session.reading_templates)

    async def _read_templates_now(self, session: _Session) -> None:
        saved = await session.store.templates()
        session.templates = {
            name: Template.from_json(from_json(text), version) for name, (text, version) in saved.items()
        }
        self._versions |= {name: version for name, (_, version) in saved.items()}
        session.templates_at = time.monotonic()

    async def _made(
        self,
        session: _Session,
        orders: Sequence[Order],
        jobs: Sequence[NewJob],
        answers: Sequence[Inserted | Refused],
        connection: Any = None,
    ) -> list[Job]:
        """The jobs as they were made; where an older one stands for a new one, that one."""
        made = cast(Sequence[Inserted], answers)  # a refusal would have been raised
        if len(jobs) == 1:
            fresh = [orders[0].made_alone(jobs[0], made[0].at, self)]
        else:
            fresh = [order.made(job, answer.at, self) for order, job, answer in zip(orders, jobs, made, strict=True)]
        ids = [answer.existing_id for answer in made if answer.existing_id is not None]
        if not ids:
            return fresh
        found = {job.id: job for job in await session.store.get(ids, connection=connection) if job}
        return [
            job if answer.existing_id is None else self._standing(answer.existing_id, found.get(answer.existing_id))
            for job, answer in zip(fresh, made, strict=True)
        ]

    def _standing(self, job_id: str, job: Job | None) -> Job:
        if job is None:
            raise JobNotFound(f"job {job_id} stood for this one and was deleted just now; enqueue again", id=job_id)
        return self._bind(replace(job, deduplicated=True))

    # -- looking -------------------------------------------------------------------------------

    async def get(self, job_id: str) -> Job:
        """The job with this id; JobNotFound if there is none."""
        job = (await (await self._session()).store.get([job_id]))[0]
        if job is None:
            raise JobNotFound(f"no job has the id {str(job_id)[:60]!r}", id=str(job_id)[:60])
        return self._bind(job)

    async def list(
        self,
        *,
        topic: str | None = None,
        status: Status | str | None = None,
        scope: str | None = None,
        scope_id: str | None = None,
        limit: int = 30,
        offset: int = 0,
    ) -> list[Job]:
        """Jobs, newest first; `status` may also be "stale". At most 1,000 at a time."""
        listing = insights.listing(topic, status, scope, scope_id, limit, offset)
        return [self._bind(job) for job in await (await self._session()).store.list(listing)]

    async def count(
        self,
        *,
        topic: str | None = None,
        status: Status | str | None = None,
        scope: str | None = None,
        scope_id: str | None = None,
    ) -> int:
        """How many jobs there are, exact up to 10,000 (then 10,001)."""
        return await (await self._session()).store.count(insights.listing(topic, status, scope, scope_id, 1, 0))

    async def stats(self, *, topic: str | None = None, since: datetime | None = None) -> QueueStats:
        """Counts by status, success rate and average run time; ended jobs since `since`, or all."""
        wanted = None if topic is None else checked_topic(topic)
        store = (await self._session()).store
        return insights.summarise(await store.stats(wanted, None if since is None else to_ms(since, "since")))

    async def events(self, job_id: str) -> Sequence[Event]:
        """The whole timeline of a job over all its attempts, oldest first; metadata as in JSON."""
        return await insights.timeline((await self._session()).store, job_id)

    async def stream(self, *, topic: str | None = None, job_id: str | None = None) -> AsyncGenerator[dict[str, Any]]:
        """Every event as it happens, whichever process caused it, until the queue is closed: `{event, at, job}`.

        `{"event": "resync", …}` where some were missed, because the reader was too slow: look at the jobs again.
        """
        await self.open()

        def wanted(job: Mapping[str, Any]) -> bool:
            return topic in (None, job["topic"]) and job_id in (None, job["id"])

        async with contextlib.aclosing(self.feed.listen(match=wanted)) as events:
            async for told in events:
                yield from_json(told.data)

    async def why(self, job_id: str) -> Sequence[str]:
        """Why a job is not running, in sentences; empty if nothing stands in its way."""
        return await insights.why((await self._session()).store, job_id)

    async def result(self, job_id: str, timeout: Duration | None = None) -> Any:
        """Wait for the end of a job and return its result; JobFailed if it did not complete."""
        limit = None if timeout is None else duration_ms(timeout, "timeout") / 1000
        job = await self.get(job_id)
        if not job.ended:
            job = await self._wait_ended(job_id, limit)
        if job.status is not Status.COMPLETED:
            raise JobFailed(
                f"job {job_id} is {job.status}" + (f": {job.last_error}" if job.last_error else ""),
                status=str(job.status),
                id=job_id,
            )
        handler = self.handlers.get(job.topic)
        return handler.result(job.result_value) if handler else job.result_value

    async def _wait_ended(self, job_id: str, limit: float | None) -> Job:
        news = asyncio.Event()
        store = (await self._session()).store
        unsubscribe = store.subscribe(lambda hint: news.set() if hint == ENDED else None)
        try:
            async with asyncio.timeout(limit):
                return await self._poll_ended(job_id, news)
        except TimeoutError:
            raise ResultTimeout(f"job {job_id} has not ended within {limit:g} s", id=job_id) from None
        finally:
            unsubscribe()

    async def _poll_ended(self, job_id: str, news: asyncio.Event) -> Job:
        """By hints from this process, and by polling for what other processes do."""
        pause = 0.02
        while not (job := await self.get(job_id)).ended:
            try:
                async with asyncio.timeout(pause):
                    await news.wait()
            except TimeoutError:
                pause = min(pause * 1.5, 0.5)
            news.clear()
        return job

    async def template(self, topic: str) -> Template:
        """How jobs of this topic are done: as this process or the last one that served it says."""
        return await self._template(await self._session(), topic)

    async def topics(self) -> Sequence[Topic]:
        return await (await self._session()).store.topics()

    # -- steering ------------------------------------------------------------------------------

    async def cancel(self, job_id: str, reason: str = "") -> Job:
        """Stop a job: at once if it is pending, at its next checkpoint if it runs."""
        session = await self._session()
        fixed = await self._uncancelable(session)
        return self._answer((await session.store.cancel([job_id], _checked_reason(reason), fixed))[0])

    async def _uncancelable(self, session: _Session) -> Sequence[str]:
        await self._read_templates(session)
        known = session.templates | {topic: one.template for topic, one in self.handlers.items()}
        return [topic for topic, template in known.items() if not template.cancel.supported]

    async def requeue(self, job_id: str, *, force: bool = False) -> Job:
        """Put an ended job back with all its attempts; a completed one only with `force`."""
        return self._answer((await (await self._session()).store.requeue([job_id], force))[0])

    async def release(self, job_id: str) -> Job:
        """Take a running job from its worker and put it back, unspent; the worker's writes are refused from then on."""
        return self._answer((await (await self._session()).store.release([job_id]))[0])

    async def reschedule(
        self,
        job_id: str,
        *,
        run_at: datetime | None = None,
        priority: Priority | None = None,
        max_attempts: int | None = None,
    ) -> Job:
        """Change a pending job."""
        answer = await (await self._session()).store.reschedule(
            job_id,
            run_at=None if run_at is None else to_ms(run_at),
            priority=None if priority is None else priority_value(priority),
            max_attempts=None if max_attempts is None else checked_attempts(max_attempts),
        )
        return self._answer(answer)

    async def cancel_many(self, job_ids: Sequence[str], reason: str = "") -> Sequence[Exception | None]:
        """Cancel many at once: for each None, or why it could not be."""
        session = await self._session()
        fixed = await self._uncancelable(session)
        return _refusals(await session.store.cancel(job_ids, _checked_reason(reason), fixed))

    async def requeue_many(self, job_ids: Sequence[str], *, force: bool = False) -> Sequence[Exception | None]:
        return _refusals(await (await self._session()).store.requeue(job_ids, force))

    async def release_many(self, job_ids: Sequence[str]) -> Sequence[Exception | None]:
        return _refusals(await (await self._session()).store.release(job_ids))

    async def delete_many(self, job_ids: Sequence[str], *, force: bool = False) -> Sequence[Exception | None]:
        return _refusals(await (await self._session()).store.delete(job_ids, force))

    async def delete(self, job_id: str, *, force: bool = False) -> None:
        """Delete a pending, failed, cancelled or expired job; a completed one only with `force`."""
        answer = (await (await self._session()).store.delete([job_id], force))[0]
        if isinstance(answer, Refusal):
            raise answer.error

    async def pause(self, topic: str, until: datetime | None = None) -> None:
        """Start no more jobs of this topic; they can still be enqueued."""
        when = FOREVER if until is None else to_ms(until, "until")
        await (await self._session()).store.pause(checked_topic(topic), when)

    async def resume(self, topic: str) -> None:
        await (await self._session()).store.resume(checked_topic(topic))

    def _answer(self, answer: Job | Refusal) -> Job:
        if isinstance(answer, Refusal):
            raise answer.error
        return self._bind(answer)

    def _bind(self, job: Job) -> Job:
        job.queue = self
        return job

    # -- working -------------------------------------------------------------------------------

    async def work(self, /, *, signals: bool = False, **options: Any) -> None:
        """Run a worker in this process until it is stopped; `options` are `Worker`'s, `signals` is `run`'s."""
        from treadle.worker import Worker

        await self.open()
        await Worker(self, **options).run(signals=signals)

    def asgi(self) -> ASGIApp:
        """The HTTP API of this queue: `app.mount("/queue", queue.asgi())` in an application of your own."""
        from treadle.http import create_app

        return create_app(self)

    def __repr__(self) -> str:
        return f"<Queue {shown(self.url)}>"


def _make_handler(topic: str, function: Callable[..., Any], options: Mapping[str, Any]) -> Handler:
    chosen = dict(options)
    process = chosen.pop("process", False)
    attempts, rate = chosen.pop("max_attempts", None), chosen.get("rate")
    if chosen.get("retry") is None:
        chosen["retry"] = Retry()
    if attempts is not None:
        chosen["retry"] = replace(chosen["retry"], max_attempts=attempts)
    if isinstance(rate, tuple):
        chosen["rate"] = Rate(*rate)
    if chosen.get("cancel") is None:
        chosen.pop("cancel", None)
    try:
        template = Template(topic, **chosen)
    except TypeError as error:
        raise InvalidInput(f"{topic}: {error}") from None
    handler = Handler(function, template, process)
    handler.template = replace(template, payload_schema=handler.schema())
    return handler


def _checked_requests(requests: Iterable[JobRequest]) -> Iterable[JobRequest]:
    for i, one in enumerate(requests):
        if not isinstance(one, JobRequest):
            raise InvalidInput(f"jobs[{i}]: {type(one).__name__} is not a JobRequest", field="jobs")
        yield one


def _checked_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in options:
        if name not in _OPTIONS:
            raise InvalidInput(f"{name}: enqueue has no such option", field=str(name))
    return options


_OPTIONS = frozenset(inspect.signature(Queue.enqueue).parameters) - {"self", "topic", "payload", "connection"}


def _refusals(answers: Sequence[Job | str | Refusal]) -> list[Exception | None]:
    return [answer.error if isinstance(answer, Refusal) else None for answer in answers]


def _traced(jobs: list[NewJob], traceparent: str | None) -> list[NewJob]:
    return jobs if traceparent is None else [job._replace(trace=traceparent) for job in jobs]


def _checked_reason(reason: str) -> str:
    if not isinstance(reason, str) or len(reason) > 1000:
        raise InvalidInput("reason: a text of at most 1,000 characters, please", field="reason")
    dumps(reason, "reason")  # refuses what databases can't keep
    return reason


__all__ = ["JobRequest", "Queue", "Task", "is_job_id"]
