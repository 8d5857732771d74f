"""Following jobs while they run: their events, one job, what it emits."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any, Literal, overload

from treadle.model.errors import InvalidInput
from treadle.model.job import Job
from treadle.model.output import DEFAULT_CHANNEL
from treadle.queue.control import JobControl
from treadle.queue.listeners import AnyListener

if TYPE_CHECKING:
    from treadle.events.feed import Feed
    from treadle.events.output import OutputEvent, OutputWatch


class JobFollowing(JobControl):
    """The part of `Queue` that tells what happens."""

    @property
    def feed(self) -> Feed:
        """The event feed of this database on the running event loop."""
        return self._sessions.current().feed

    def on(self, event: str, *, topic: str | None = None, local: bool = False) -> Callable[[AnyListener], AnyListener]:
        """Call the decorated function for each event of this name, once it is stored: `{event, at, job}`.

        Sync or async; sync ones run in a thread, and their `job` has blocking methods. Each process that uses this
        queue hears the events of all processes, or with `local` those of its own jobs. Nothing is heard that happens
        while the queue is closed: use a webhook or a follow-up job for what must not be lost.
        """
        return lambda function: self.listeners.add(event, function, topic, local=local)

    @overload
    def stream(
        self, *, topic: str | None = None, job_id: str | None = None, snapshot: bool = False, format: None = None
    ) -> AsyncGenerator[dict[str, Any]]: ...
    @overload
    def stream(
        self, *, topic: str | None = None, job_id: str | None = None, snapshot: bool = False, format: Literal["sse"]
    ) -> AsyncGenerator[bytes]: ...
    async def stream(
        self,
        *,
        topic: str | None = None,
        job_id: str | None = None,
        snapshot: bool = False,
        format: Literal["sse"] | None = None,
    ) -> AsyncGenerator[dict[str, Any] | bytes]:
        """Every event as it happens, whichever process caused it, until the queue is closed: `{event, at, job}`.

        `{"event": "resync", …}` where some were missed, because the reader was too slow: look at the jobs again. With
        `snapshot` they come along: `{"event": "snapshot", "jobs": […]}` is first, and follows each `resync`. It has the
        newest 1,000 jobs of one moment; every event after that moment follows, and none before it.

        With `format="sse"` they are the bytes of server-sent events, with a `ping` every 15 seconds of silence.
        """
        from treadle.events import streams

        if format not in (None, "sse"):
            raise InvalidInput(f"format: {format!r} is not sse", field="format")
        await self.open()
        told: AsyncGenerator[Any]
        if format == "sse":
            told = streams.frames(self.feed, topic, job_id, snapshot=snapshot)
        else:
            told = streams.events(self.feed, topic, job_id, snapshot=snapshot)
        async with contextlib.aclosing(told) as events:
            async for event in events:
                yield event

    async def watch(self, job_id: str) -> AsyncGenerator[Job]:
        """The job now and after each of its events, without gaps, until it has ended or is deleted."""
        from treadle.events import streams

        await self.get(job_id)
        async with contextlib.aclosing(streams.states(self.feed, job_id)) as states:
            async for job in states:
                yield self._bind(job)

    @property
    def output_watch(self) -> OutputWatch:
        """What readers of output share on the running event loop."""
        from treadle.events.output import OutputWatch

        session = self._sessions.current()
        if session.output is None:
            session.output = OutputWatch(session.store)
        return session.output

    @overload
    def output(
        self, job_id: str, channel: str = DEFAULT_CHANNEL, *, after: int = 0, latest: bool = False
    ) -> AsyncGenerator[Any]: ...
    @overload
    def output(
        self,
        job_id: str,
        channel: str = DEFAULT_CHANNEL,
        *,
        after: int = 0,
        latest: bool = False,
        events: Literal[True],
    ) -> AsyncGenerator[OutputEvent]: ...
    async def output(
        self,
        job_id: str,
        channel: str = DEFAULT_CHANNEL,
        *,
        after: int = 0,
        latest: bool = False,
        events: bool = False,
    ) -> AsyncGenerator[Any]:
        """What a job emits to a channel (`ctx.emit`), from the start or `after` a value, until the job has ended.

        `latest`: only what comes from now on. With `events` each item says what it is (`kind`: "value", "reset", when a
        new attempt writes to the channel, or "end") and has an `id` to resume after; otherwise only the values come.
        """
        from treadle.events import output

        store = (await self._session()).store
        found = output.follow(self.output_watch, store, job_id, channel, after, latest=latest)
        async with contextlib.aclosing(found) as following:
            async for event in following:
                if events:
                    yield event
                elif event.kind == output.VALUE:
                    yield event.value
