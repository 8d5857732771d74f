"""Following what a job emits.

Readers keep their own places and read pages from the store, so a slow one costs no memory. One look for all of them
finds out where there is something new: woken by hints, and now and then in case a hint was missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple

from treadle.model.errors import JobNotFound, StoreUnavailable
from treadle.model.output import checked_channel
from treadle.model.status import Status
from treadle.store.protocol import Store
from treadle.store.wakeups import ENDED, OUTPUT

log = logging.getLogger("treadle.events")

VALUE, RESET, END = "value", "reset", "end"
# Between two looks: the least, and how long without a hint while there was something new lately, or not.
LEAST_PAUSE_S = 0.02
BUSY_PAUSE_S = 0.1
IDLE_PAUSE_S = 1.0
# News are usually followed by more: keep the faster pace for this long.
ACTIVE_S = 5.0
# A look may take this part of the time, however many readers there are.
MOST_OF_THE_TIME = 0.2


class OutputEvent(NamedTuple):
    kind: str
    """"value", "reset" (a new attempt writes to the channel: forget the values before) or "end"."""
    id: int
    """The number of the value, or of the last one before this event: a reader resumes after it."""
    value: Any = None
    attempt: int = 0
    status: Status | None = None
    """Of the job when it has ended; None for one that was deleted."""


class OutputWatch:
    """Finds out for all readers in this process where there is something new. Belongs to one event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._readers: set[OutputReader] = set()
        self._hint = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    def join(self, reader: OutputReader) -> None:
        self._readers.add(reader)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_again_and_again(), name="treadle-output")

    def leave(self, reader: OutputReader) -> None:
        self._readers.discard(reader)

    async def stop(self) -> None:
        """Readers are told by the error of their next read that the store is closed."""
        looking, self._looking = self._looking, None
        for reader in self._readers:
            reader.news.set()
        if looking:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    async def _look_again_and_again(self) -> None:
        unsubscribe = self._store.subscribe(lambda hint: self._hint.set() if hint in (OUTPUT, ENDED) else None)
        caller = self._store.outage.caller("output")
        active_at = took = 0.0
        try:
            while self._readers:
                busy = time.monotonic() - active_at < ACTIVE_S
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(BUSY_PAUSE_S if busy else IDLE_PAUSE_S):
                        await self._hint.wait()
                self._hint.clear()
                began = time.monotonic()
                try:
                    active_at = began if await self._look() else active_at
                    caller.worked()
                except StoreUnavailable as error:
                    caller.failed(error)
                took = time.monotonic() - began
                await asyncio.sleep(max(LEAST_PAUSE_S, took / MOST_OF_THE_TIME))
        finally:
            unsubscribe()

    async def _look(self) -> bool:
        """Wake the readers for whom there is something; whether there were any."""
        waiting = [one for one in self._readers if not one.news.is_set()]
        states = await self._store.output_states([one.id for one in waiting]) if waiting else {}
        found = False
        for one in waiting:
            state = states.get(one.id)
            channel = state.channels.get(one.channel) if state else None
            if state is None or state.status is not None or (channel and channel.last > one.place):
                one.news.set()
                found = True
        return found


class OutputReader:
    """One reader of one channel, and its place."""

    def __init__(self, watch: OutputWatch, store: Store, id: str, channel: str, after: int = 0) -> None:
        self.id = id
        self.channel = checked_channel(channel)
        self.place = max(after, 0)
        self.news = asyncio.Event()
        self._watch = watch
        self._store = store

    async def begin(self, *, latest: bool = False) -> None:
        """JobNotFound if there is no such job. `latest`: only what comes from now on."""
        page = await self._store.output(self.id, self.channel, self.place, 1)
        if page is None:
            raise JobNotFound(f"no job has the id {self.id[:60]!r}", id=self.id[:60])
        if latest:
            self.place = page.last
        self._watch.join(self)

    async def page(self) -> list[OutputEvent]:
        """What there is now after this reader's place, without waiting; the end comes last."""
        self.news.clear()
        page = await self._store.output(self.id, self.channel, self.place)
        if page is None:
            return [OutputEvent(END, self.place)]
        events: list[OutputEvent] = []
        for piece in page.pieces:
            if piece.resets:
                events.append(OutputEvent(RESET, self.place, attempt=piece.attempt))
            for number, value in enumerate(piece.values, piece.first):
                events.append(OutputEvent(VALUE, number, value, piece.attempt))
                self.place = number
        if self.place < page.last:
            self.news.set()  # there is more than a page
        elif page.status is not None:
            events.append(OutputEvent(END, self.place, status=page.status))
        return events

    async def next(self, timeout: float | None = None) -> list[OutputEvent]:
        """The next events; none if there was none within this many seconds."""
        until = None if timeout is None else asyncio.get_running_loop().time() + timeout
        while not (events := await self.page()):
            try:
                async with asyncio.timeout_at(until):
                    await self.news.wait()
            except TimeoutError:
                return []
        return events

    def close(self) -> None:
        self._watch.leave(self)


async def follow(
    watch: OutputWatch, store: Store, id: str, channel: str, after: int, *, latest: bool
) -> AsyncGenerator[OutputEvent]:
    """Every event until the job has ended and all its values are told."""
    reader = OutputReader(watch, store, id, channel, after)
    await reader.begin(latest=latest)
    try:
        while True:
            for event in await reader.next():
                yield event
                if event.kind == END:
                    return
    finally:
        reader.close()
