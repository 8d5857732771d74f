"""The open resources of a queue on each event loop.

A connection belongs to the loop that opened it, and a program may have several loops: one for each `asyncio.run`, one
for each thread, one behind `queue.sync`. So a queue has one session per loop, opened at first use.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING

from treadle.model.errors import InvalidInput
from treadle.policy.saved_template import SavedTemplate
from treadle.queue.enqueueing.intake import Intake
from treadle.queue.runtime_settings import RuntimeSettings
from treadle.store.protocol import Store

if TYPE_CHECKING:
    from treadle.events.feed import Feed
    from treadle.events.output import OutputWatch
    from treadle.queue.enqueueing.new_jobs import ReadyMaker
    from treadle.queue.listeners import ListenerTasks

Loop = asyncio.AbstractEventLoop


class Session:
    """The open resources of a queue on one event loop."""

    def __init__(self, store: Store, site: RuntimeSettings) -> None:
        self.store = store
        self.site = site
        self.intake = Intake(store)
        self.templates: dict[str, SavedTemplate] = {}
        self.template_revisions: dict[str, int] = {}
        self.makers: dict[str, ReadyMaker] = {}
        self.templates_at = float("-inf")
        self.reading_templates: asyncio.Task[None] | None = None
        self.saving: asyncio.Task[None] | None = None
        self.saved = False
        self.loop = asyncio.get_running_loop()
        self.listeners: ListenerTasks | None = None
        self._feed: Feed | None = None
        self.output: OutputWatch | None = None
        self._until_closed: AsyncGenerator[None] | None = None

    @property
    def feed(self) -> Feed:
        """The event feed of this database on this loop."""
        from treadle.events.feed import Feed

        if self._feed is None:
            self._feed = Feed(self)
        return self._feed

    async def stay_open(self, on_close: Callable[[], object]) -> None:
        """Stay open until `close` or the end of the loop: `asyncio.run` closes a loop's generators before the loop."""
        self._until_closed = self._open(on_close)
        await anext(self._until_closed)

    async def _open(self, on_close: Callable[[], object]) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            on_close()
            if self.listeners is not None:
                await self.listeners.stop()
            if self._feed is not None:
                await self._feed.stop()
            if self.output is not None:
                await self.output.stop()
            await self.store.close()

    async def close(self) -> None:
        assert self._until_closed, "it was open"
        await self._until_closed.aclose()


class Sessions:
    """The sessions of one queue, by loop; safe to use from many threads, each with its own loop."""

    def __init__(self, make: Callable[[], Awaitable[Session]]) -> None:
        self._make = make
        self._open: dict[Loop, Session] = {}
        self._opening: dict[Loop, asyncio.Task[Session]] = {}

    def __bool__(self) -> bool:
        return bool(self._open or self._opening)

    def current(self) -> Session:
        """The session of the running loop."""
        session = self._open.get(asyncio.get_running_loop())
        if session is None:
            raise InvalidInput(f"the queue is not open {self._elsewhere()}")
        return session

    def _elsewhere(self) -> str:
        if not self._open:
            return "here; await queue.open() first"
        closed = all(loop.is_closed() for loop in self._open)
        state = "has ended" if closed else "is not this one"
        return (
            f"on this event loop: it was opened on another one, which {state}; open it in your application's lifespan, "
            "such as FastAPI(lifespan=queue.lifespan()), or await queue.open() here"
        )

    async def opened(self) -> Session:
        """The running loop's session, opened if necessary."""
        loop = asyncio.get_running_loop()
        session = self._open.get(loop)
        return session or await self._opened_once(loop)

    async def _opened_once(self, loop: Loop) -> Session:
        """Concurrent callers wait for the same opening, which continues even if one of them gives up."""
        task = self._opening.get(loop)
        if task is None:
            task = self._opening[loop] = loop.create_task(self._open_session(loop))
            task.add_done_callback(lambda _: self._opening.pop(loop, None))
        return await asyncio.shield(task)

    async def _open_session(self, loop: Loop) -> Session:
        await self._close_abandoned_sessions()
        session = await self._make()
        self._open[loop] = session
        await session.stay_open(lambda: self._open.pop(loop, None))
        return session

    async def close(self) -> None:
        """Close the running loop's session."""
        await self._close_abandoned_sessions()
        loop = asyncio.get_running_loop()
        if opening := self._opening.get(loop):
            await asyncio.wait([opening])
        if session := self._open.pop(loop, None):
            await session.close()

    async def _close_abandoned_sessions(self) -> None:
        """Clean up after loops that were closed without closing their generators.

        SQLite's threads have to be ended. Nothing on a closed loop can be awaited, so PostgreSQL's sockets close when
        they are garbage-collected.
        """
        closed = [loop for loop in (*self._open, *self._opening) if loop.is_closed()]
        for loop in closed:
            self._opening.pop(loop, None)
            if session := self._open.pop(loop, None):
                with contextlib.suppress(Exception):
                    await session.store.close()
